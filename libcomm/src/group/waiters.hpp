// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/operation_state.hpp"
#include "headway/comm/endpoint.hpp"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace headway::comm {

/// Sleep of the threads that wait for operations of one group. One of them, the leader, sleeps in the endpoint, takes
/// the wake-ups and polls for all. The others, the followers, sleep on a condition variable until their operation is
/// done or the leader leaves; then one of them becomes the leader. waiters.cpp explains why no wake-up is lost.
///
/// Used under the group's lock; sleep() releases it meanwhile.
class Waiters {
 public:
  /// `endpoint` must outlive this object.
  explicit Waiters(Endpoint& endpoint) : endpoint_(endpoint) {}
  /// Leaks the condition variable, whose destructor would wait for threads that a forked child does not have.
  void abandon() { static_cast<void>(followers_changed_.release()); }

  /// Leadership of one waiting thread, from its first sleep to the end of its wait. Created and destroyed under the
  /// group's lock.
  class Waiter {
   public:
    explicit Waiter(Waiters& waiters) : waiters_(waiters) {}
    Waiter(Waiter const&) = delete;
    Waiter& operator=(Waiter const&) = delete;
    ~Waiter() {
      if (leads_) give_up_lead();
    }

   private:
    friend Waiters;
    void give_up_lead();
    /// Becomes the leader if there is none. @returns whether this thread leads.
    bool lead();

    Waiters& waiters_;
    bool leads_ = false;
  };

  /// Sleeps as leader or as follower until `deadline`, an event, or the end of `operation`. `poll` moves the group on,
  /// with the lock held.
  void sleep(std::unique_lock<std::mutex>& lock, Waiter& waiter, Deadline deadline, OperationState const& operation,
             std::function<void()> const& poll);
  /// Sleeps until `deadline` or the end of `operation`, which the progress thread brings about.
  void follow(std::unique_lock<std::mutex>& lock, Deadline deadline, OperationState const& operation);
  /// Some operations ended: wakes the followers, and the leader if its operation is among them.
  void wake_done() {
    if (num_followers_ > 0) followers_changed_->notify_all();
    wake_leader_if_done();
  }
  /// Another thread took a wake-up that may have been for the leader.
  void wake_leader_if_done() {
    if (leader_sleeps_for_ != nullptr && leader_sleeps_for_->done()) endpoint_.wake();
  }

  /// Count the users of the endpoint's wake-ups: the first arms it, the last disarms it. The progress thread is one.
  void arm() {
    if (num_armed_++ == 0) endpoint_.arm();
  }
  void disarm() {
    if (--num_armed_ == 0) endpoint_.disarm();
  }

 private:
  void sleep_as_leader(std::unique_lock<std::mutex>& lock, Deadline deadline, OperationState const& operation,
                       std::function<void()> const& poll);

  Endpoint& endpoint_;
  int num_armed_ = 0;  ///< Calls of arm() without a disarm() yet.
  bool has_leader_ = false;
  /// Operation that the sleeping leader waits for. Null: the leader is not in the endpoint's sleep().
  OperationState const* leader_sleeps_for_ = nullptr;
  int num_followers_ = 0;
  std::unique_ptr<std::condition_variable> followers_changed_ = std::make_unique<std::condition_variable>();
};

}  // namespace headway::comm
