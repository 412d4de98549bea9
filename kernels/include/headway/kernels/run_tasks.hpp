#pragma once

#include <cstdint>
#include <functional>

namespace headway::kernels {

using Task = std::function<void(std::int64_t)>;

/// How a caller has tasks done: calls `task(i)` for each i below `count`, in any order and at the same time if it
/// likes, and returns when all are done. What kernels compute does not depend on it.
using RunTasks = std::function<void(std::int64_t count, Task const& task)>;

/// One after the other.
inline void run_in_turn(std::int64_t count, Task const& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace headway::kernels
