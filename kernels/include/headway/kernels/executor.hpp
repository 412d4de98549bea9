// SPDX-License-Identifier: Apache-2.0

// How kernels on the CPU use threads: they get an executor and own none. torch passes its own pool, tests run serially.

#pragma once

#include <cstdint>
#include <functional>

namespace headway::kernels {

/// One task, called with its index.
using Task = std::function<void(std::int64_t)>;

/// Executor supplied by the caller: calls `task(i)` for each i below `count`, in any order and possibly in parallel,
/// and returns when all are done. Results of kernels do not depend on the order.
using Executor = std::function<void(std::int64_t count, Task const& task)>;

/// Executor that runs the tasks one after the other.
inline void run_serially(std::int64_t count, Task const& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace headway::kernels
