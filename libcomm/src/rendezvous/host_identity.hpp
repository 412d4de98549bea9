#pragma once

#include <string>

namespace headway::comm {

/// Equal for processes that can share memory and local sockets: boot id and network namespace. "": not known.
[[nodiscard]] std::string host_identity();

}  // namespace headway::comm
