#pragma once

#include "headway/embedding/workers.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>

namespace headway::embedding {

/// Threads that share the work of one call at a time. They sleep in between. In a forked child, which has no threads
/// but its own, callers do all work themselves.
class WorkerPool {
 public:
  /// `num_threads` with the caller's; from 1.
  explicit WorkerPool(int num_threads);
  WorkerPool(WorkerPool const&) = delete;
  WorkerPool& operator=(WorkerPool const&) = delete;
  ~WorkerPool();

  [[nodiscard]] int num_threads() const;
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
  /// The same, without numbers, for items that each move `item_bytes`.
  template <class Visit>
  void in_ranges_of(std::size_t count, std::size_t item_bytes, Visit visit) {
    constexpr std::size_t kRangeBytes = std::size_t{128} << 10;
    std::size_t const size = std::clamp(kRangeBytes / (item_bytes + 1), std::size_t{8}, kRangeSize);
    run((count + size - 1) / size,
        [&](std::size_t range) { visit(range * size, std::min((range + 1) * size, count)); });
  }

 private:
  class Crew;
  [[nodiscard]] bool is_forked() const;

  std::unique_ptr<Crew> crew_;
  int process_;  ///< Whose threads they are: a forked child has none of them.
};

}  // namespace headway::embedding
