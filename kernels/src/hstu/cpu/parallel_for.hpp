#pragma once

#include "headway/kernels/run_tasks.hpp"

#include <cstdint>
#include <functional>

namespace headway::kernels::hstu {

/// Calls `task(thread, item)` for each item below `count`, each thread taking the next one, and waits for all. Threads
/// are numbered from 0, and are at most one an item, so that little work has one.
/// @param run_tasks runs the threads; none: the caller is the first, and the others are started
/// @param task does not throw
void parallel_for(std::int64_t count, int num_threads, RunTasks const& run_tasks,
                  std::function<void(int, std::int64_t)> const& task);

}  // namespace headway::kernels::hstu
