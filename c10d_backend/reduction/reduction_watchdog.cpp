// SPDX-License-Identifier: Apache-2.0

// Turns the failure of a group into the failure of its pending reductions.
//
// Idea: a reduction depends on a delegate (Gloo) that may wait for a dead rank until its own timeout. The headway group
// learns of the death by itself. One thread per group polls the group's health while reductions are pending,
// and completes their works with the group's error.
//
// Example: ranks 0, 1 and 2 start an all_reduce, and rank 2 dies. Gloo on rank 0 waits for rank 1, which waits for rank
// 2. The groups of ranks 0 and 1 fail; within 100 ms their watchdogs fail both works, and wait() and futures throw
// "lost a peer".
//
// Invariants:
// - An entry belongs to its work, which releases it when it settles. So `works_` holds pending works only.
// - Works are completed without `mutex_`, because callbacks of futures run then.
// - The watchdog holds the group weakly: it never keeps a group alive.
// Complexity: one check per 100 ms while reductions are pending; a failure costs O(pending works).

#include "reduction/reduction_watchdog.hpp"

#include "reduction/delegated_work.hpp"
#include "runtime/detached_thread.hpp"

#include <chrono>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Interval of the checks while a reduction is pending.
constexpr std::chrono::milliseconds kCheckInterval{100};

}  // namespace

ReductionWatchdog::Entry ReductionWatchdog::add(c10::intrusive_ptr<DelegatedWork> work) {
  std::lock_guard const lock(mutex_);
  if (!has_thread_ && !is_closed_) {
    start_detached("headway_watch", [self = shared_from_this()] { self->run(); });
    has_thread_ = true;
  }
  std::uint64_t const id = next_id_++;
  works_.emplace(id, std::move(work));
  if (is_idle_) changed_.notify_all();
  return {nullptr, [self = shared_from_this(), id](void*) { self->release(id); }};
}

void ReductionWatchdog::release(std::uint64_t id) {
  Works::node_type left;
  std::lock_guard const lock(mutex_);
  left = works_.extract(id);
}

void ReductionWatchdog::close() {
  Works left;
  {
    std::lock_guard const lock(mutex_);
    is_closed_ = true;
    left.swap(works_);
  }
  changed_.notify_all();
}

bool ReductionWatchdog::end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return !has_thread_; });
}

void ReductionWatchdog::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      is_idle_ = true;
      changed_.wait(lock, [this] { return is_closed_ || !works_.empty(); });
      is_idle_ = false;
      changed_.wait_for(lock, kCheckInterval, [this] { return is_closed_; });
      if (is_closed_) {
        has_thread_ = false;
        changed_.notify_all();
        return;
      }
    }
    check_group();
  }
}

void ReductionWatchdog::check_group() {
  auto const group = group_.lock();
  if (!group || group->group().monitor().health().ok()) return;
  Works pending;
  {
    std::lock_guard const lock(mutex_);
    pending = works_;
  }
  for (auto const& [id, work] : pending) work->fail_with(*group);
}

}  // namespace headway::c10d_backend
