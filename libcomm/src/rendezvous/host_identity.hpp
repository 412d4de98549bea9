#pragma once

#include <string>

namespace headway::comm {

/// Equal for processes that can share memory and local sockets: boot id and network namespace. "": not known.
[[nodiscard]] std::string physical_host_identity();

/// The same, with what the environment variable HEADWAY_HOST_ID says, so that processes of one host may be told apart
/// as if they were on several.
[[nodiscard]] std::string host_identity();

}  // namespace headway::comm
