#include "hstu/cpu/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace headway::kernels::hstu {

void parallel_for(std::int64_t count, int num_threads, RunTasks const& run_tasks,
                  std::function<void(int, std::int64_t)> const& task) {
  // Relaxed is enough: starting and joining threads orders what tasks read and write.
  std::atomic<std::int64_t> next = 0;
  auto const work = [&](int thread) {
    for (std::int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(thread, item);
  };
  std::int64_t const num_workers = std::min<std::int64_t>(num_threads, count);
  if (run_tasks) return run_tasks(num_workers, [&](std::int64_t thread) { work(static_cast<int>(thread)); });
  std::vector<std::jthread> others;
  for (int thread = 1; thread < num_workers; ++thread) others.emplace_back(work, thread);
  work(0);
}

}  // namespace headway::kernels::hstu
