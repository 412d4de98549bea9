#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headway::embedding {

/// Threads that share the work of one call at a time. They sleep in between.
class WorkerPool {
 public:
  /// `num_threads` with the caller's; from 1.
  explicit WorkerPool(int num_threads);
  WorkerPool(WorkerPool const&) = delete;
  WorkerPool& operator=(WorkerPool const&) = delete;
  ~WorkerPool();

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  /// Calls `task(i)` for each i below `count`, in any order on any thread, and waits for all. A caller beside another
  /// one does its tasks itself; a task must not call. The first exception is thrown once no task runs any more; others
  /// may be left out then.
  void run(std::size_t count, std::function<void(std::size_t)> const& task);

  /// So many items of a cheap task that handing them out does not count.
  static constexpr std::size_t kRangeSize = 2048;
  [[nodiscard]] static std::size_t num_ranges(std::size_t count) { return (count + kRangeSize - 1) / kRangeSize; }
  /// Calls `visit(range, first, end)` for ranges that cover [0, count).
  template <class Visit>
  void in_ranges(std::size_t count, Visit visit) {
    run(num_ranges(count),
        [&](std::size_t range) { visit(range, range * kRangeSize, std::min((range + 1) * kRangeSize, count)); });
  }

 private:
  void stop() noexcept;
  void work();
  /// Takes tasks until none is left.
  void take_tasks();

  std::mutex run_mutex_;  ///< Held by the call whose work it is.
  std::mutex mutex_;      ///< Guards what follows.
  std::condition_variable begins_, ends_;
  std::uint64_t num_runs_ = 0;
  std::size_t num_busy_ = 0;
  bool is_over_ = false;
  std::exception_ptr error_;

  // Set before a run begins.
  std::function<void(std::size_t)> const* task_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_ = 0;

  std::vector<std::thread> threads_;
};

}  // namespace headway::embedding
