// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>

namespace headway::base {

/// Fork-join thread pool: its threads share the work of one call at a time and sleep in between. A forked child has
/// none of the threads, so its callers do all work themselves. The algorithm is explained in thread_pool.cpp.
class ThreadPool {
 public:
  /// @param num_threads at least 1, including the calling thread
  /// @throws UsageError if it is less
  explicit ThreadPool(int num_threads);
  ThreadPool(ThreadPool const&) = delete;
  ThreadPool& operator=(ThreadPool const&) = delete;
  ~ThreadPool();

  [[nodiscard]] int num_threads() const;
  /// Calls `task(i)` for each i in [0, count), in any order on any thread, and waits for all. If another call has the
  /// threads, the caller runs all its tasks itself. A task must not call run(). After an exception the remaining tasks
  /// may be skipped; the first exception is thrown once no task runs any more.
  void run(std::size_t count, std::function<void(std::size_t)> const& task);

  /// Items per range of a cheap task: enough that the cost of handing out a range does not matter.
  static constexpr std::size_t kRangeSize = 2048;
  [[nodiscard]] static std::size_t num_ranges(std::size_t count) { return (count + kRangeSize - 1) / kRangeSize; }
  /// Calls `visit(range, first, end)` for each range of kRangeSize items (the last may be shorter) of [0, count).
  template <class Visit>
  void in_ranges(std::size_t count, Visit visit) {
    run(num_ranges(count),
        [&](std::size_t range) { visit(range, range * kRangeSize, std::min((range + 1) * kRangeSize, count)); });
  }
  /// Calls `visit(first, end)` for ranges of [0, count) that each move about 128 KiB, in 8 to kRangeSize items.
  /// @param item_bytes bytes that an item moves
  template <class Visit>
  void in_ranges_of(std::size_t count, std::size_t item_bytes, Visit visit) {
    constexpr std::size_t kRangeBytes = std::size_t{128} << 10;
    std::size_t const size = std::clamp(kRangeBytes / (item_bytes + 1), std::size_t{8}, kRangeSize);
    run((count + size - 1) / size,
        [&](std::size_t range) { visit(range * size, std::min((range + 1) * size, count)); });
  }

 private:
  class Workers;  ///< The threads and the state that they share.
  [[nodiscard]] bool is_forked() const;

  std::unique_ptr<Workers> workers_;
  int process_;  ///< Id of the process that has the threads; another one is a forked child.
};

}  // namespace headway::base
