// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_handle.hpp"
#include "runtime/exit_hooks.hpp"
#include "torch_headers.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace headway::c10d_backend {

class DelegatedWork;

/// Fails the pending reductions of a group once the group has failed. A delegate notices a dead rank only where it
/// waits for that rank; elsewhere it waits until its timeout. And a caller that waits for a future does not ask the
/// group.
///
/// The thread starts at the first reduction. It checks the group ten times a second while a reduction is pending, and
/// sleeps otherwise. It is detached and keeps only the watchdog alive. reduction_watchdog.cpp explains the algorithm.
class ReductionWatchdog final : public ExitHook, public std::enable_shared_from_this<ReductionWatchdog> {
 public:
  /// A work is watched until its entry is released.
  using Entry = std::shared_ptr<void>;

  explicit ReductionWatchdog(std::weak_ptr<GroupHandle> group) : group_(std::move(group)) {}

  /// Starts to watch `work`. @throws c10::DistBackendError if the thread cannot be started.
  [[nodiscard]] Entry add(c10::intrusive_ptr<DelegatedWork> work);
  /// Makes the thread end soon, and releases all works.
  void close();

  // ExitHook: the thread holds works, which may hold what Python owns.
  [[nodiscard]] Order order() const override { return Order::kReductions; }
  void leave() override { close(); }
  [[nodiscard]] bool end(Deadline deadline) override;

 private:
  using Works = std::map<std::uint64_t, c10::intrusive_ptr<DelegatedWork>>;

  void release(std::uint64_t id);
  void run();
  void check_group();

  std::weak_ptr<GroupHandle> group_;
  std::mutex mutex_;  ///< Guards the members below. Not held while the group or a work is called or freed.
  std::condition_variable changed_;
  Works works_;
  std::uint64_t next_id_ = 0;
  bool has_thread_ = false;
  bool is_idle_ = false;  ///< True while the thread waits for a work; otherwise it checks again by itself.
  bool is_closed_ = false;
};

}  // namespace headway::c10d_backend
