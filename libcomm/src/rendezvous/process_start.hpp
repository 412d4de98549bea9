#pragma once

#include <chrono>

namespace headway::comm {

/// When this process began, by the clock of its host; a time of long ago where the kernel does not tell.
[[nodiscard]] std::chrono::system_clock::time_point process_start();

}  // namespace headway::comm
