#pragma once

#include <chrono>

namespace headway::comm {

/// Start time of this process by the clock of its host; the epoch (1970) if the kernel does not tell.
[[nodiscard]] std::chrono::system_clock::time_point process_start();

}  // namespace headway::comm
