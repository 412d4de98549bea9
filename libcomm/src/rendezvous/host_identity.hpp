#pragma once

#include <string>

namespace headway::comm {

/// Boot id and network namespace: equal for processes that can share memory and local sockets. Empty if unknown.
[[nodiscard]] std::string physical_host_identity();

/// Same, extended by the environment variable HEADWAY_HOST_ID, which makes processes of one host act as if on several.
[[nodiscard]] std::string host_identity();

}  // namespace headway::comm
