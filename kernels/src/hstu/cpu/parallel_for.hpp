#pragma once

#include "headway/kernels/run_tasks.hpp"

#include <cstdint>
#include <functional>

namespace headway::kernels::hstu {

/// Calls `task(thread, item)` for each item below `count` and waits for all. Threads take items from a shared counter.
/// They are numbered from 0; there are at most as many as items, so little work uses few threads.
/// @param run_tasks runs the threads; if empty, the caller is thread 0 and the others are started
/// @param task must not throw
void parallel_for(std::int64_t count, int num_threads, RunTasks const& run_tasks,
                  std::function<void(int, std::int64_t)> const& task);

}  // namespace headway::kernels::hstu
