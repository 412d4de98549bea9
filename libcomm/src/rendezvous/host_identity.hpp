#pragma once

#include <string>

namespace headway::comm {

/// Equal for processes that can share memory and local sockets: boot id and network namespace, and what the environment
/// variable HEADWAY_HOST_ID says, so that processes of one host may be told apart as if they were on several. "": not
/// known.
[[nodiscard]] std::string host_identity();

}  // namespace headway::comm
