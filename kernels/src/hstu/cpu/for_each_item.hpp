// SPDX-License-Identifier: Apache-2.0

// Work sharing of the passes on the CPU: threads take items from a shared counter, since items differ in cost.

#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/kernels/executor.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace headway::kernels::hstu {

/// Calls `task(thread, item)` for each item below `count` and waits for all. Threads take items from a shared counter.
/// They are numbered from 0; there are at most as many as items, so little work uses few threads.
/// @param executor runs the threads; if empty, a pool of threads is made for the call
/// @param task must not throw
inline void for_each_item(std::int64_t count, int num_threads, Executor const& executor,
                          std::function<void(int, std::int64_t)> const& task) {
  // Relaxed is enough: starting and joining threads orders what tasks read and write.
  std::atomic<std::int64_t> next = 0;
  auto const run_thread = [&](int thread) {
    for (std::int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(thread, item);
  };
  std::int64_t const num_used = std::min<std::int64_t>(num_threads, count);
  if (executor) return executor(num_used, [&](std::int64_t thread) { run_thread(static_cast<int>(thread)); });
  if (num_used == 0) return;
  base::ThreadPool pool(static_cast<int>(num_used));
  pool.run(static_cast<std::size_t>(num_used), [&](std::size_t thread) { run_thread(static_cast<int>(thread)); });
}

}  // namespace headway::kernels::hstu
