// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace headway::comm {

/// Boot id and network namespace: equal for processes that can share memory and local sockets. Empty if unknown.
[[nodiscard]] std::string physical_host_identity();

/// Same, extended by the environment variable HEADWAY_HOST_ID, which makes processes of one host act as if on several.
[[nodiscard]] std::string host_identity();

/// Start time of this process by the clock of its host; the epoch (1970) if the kernel does not tell.
[[nodiscard]] std::chrono::system_clock::time_point process_start();

}  // namespace headway::comm
