#pragma once

#include <cstdint>
#include <functional>

namespace headway::kernels {

/// One task, called with its index.
using Task = std::function<void(std::int64_t)>;

/// Executor supplied by the caller: calls `task(i)` for each i below `count`, in any order and possibly in parallel,
/// and returns when all are done. Results of kernels do not depend on the order.
using RunTasks = std::function<void(std::int64_t count, Task const& task)>;

/// Executor that runs the tasks one after the other.
inline void run_in_turn(std::int64_t count, Task const& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace headway::kernels
