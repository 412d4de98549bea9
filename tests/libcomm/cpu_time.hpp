// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <ctime>

namespace headway::comm {

/// Reads a POSIX clock.
inline std::chrono::nanoseconds cpu_time(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// CPU time that the calling thread, or this process, has used.
inline std::chrono::nanoseconds thread_cpu_time() { return cpu_time(CLOCK_THREAD_CPUTIME_ID); }
inline std::chrono::nanoseconds process_cpu_time() { return cpu_time(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace headway::comm
