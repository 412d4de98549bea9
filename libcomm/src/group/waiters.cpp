// SPDX-License-Identifier: Apache-2.0

// Waiting for operations: a leader, followers, and the progress thread.
//
// Idea: a waiting thread polls the endpoint under the group's lock. After 200 us without success (2 ms while peers
// write into outputs of this rank) it sleeps. One sleeper, the leader, sleeps in the endpoint, takes its wake-ups and
// polls for all. The other sleepers, the followers, sleep on a condition variable. So no thread takes a wake-up that
// another one needs.
//   Leader: arm(), poll once more, publish its operation (leader_sleeps_for_), unlock, sleep(), lock, disarm().
//   Any poll that completes operations notifies the followers, and wakes the leader if its operation is done.
//   A leader that returns gives up the lead and notifies the followers; the first that sleeps again becomes the leader.
//   The progress thread may take the leader's wake-up. It then polls before it releases the lock, and wakes the leader
//   if that completed the leader's operation.
//   With more ranks than cores, and a progress thread, nobody leads: the sleepers follow that thread (follow()).
//
// Example: thread A waits for operation 0 and leads; thread B waits for operation 1 and follows. Data of operation 0
// wakes A, which completes 0 and notifies. B finds 1 incomplete and sleeps on. A leaves and notifies; B leads.
//
// Invariants: there is at most one leader. A follower in sleep() sleeps only while there is one.
//   A poll follows each arm(), since an arrival before arm() rings no doorbell.
// Complexity: a completion notifies all followers; those whose operation is not done sleep again.
// Source: tests/model/sleeping.pml checks that no wake-up is lost. Measurements: docs/design/sleeping.md.

#include "group/waiters.hpp"

namespace headway::comm {

void Waiters::Waiter::give_up_lead() {
  waiters_.has_leader_ = false;
  if (waiters_.num_followers_ > 0) waiters_.followers_changed_->notify_all();
}

bool Waiters::Waiter::lead() {
  if (!leads_ && !waiters_.has_leader_) leads_ = waiters_.has_leader_ = true;
  return leads_;
}

void Waiters::sleep(std::unique_lock<std::mutex>& lock, Waiter& waiter, Deadline deadline,
                    OperationState const& operation, std::function<void()> const& poll) {
  if (waiter.lead()) return sleep_as_leader(lock, deadline, operation, poll);
  ++num_followers_;
  followers_changed_->wait_until(lock, deadline, [&] { return operation.done() || !has_leader_; });
  --num_followers_;
}

void Waiters::follow(std::unique_lock<std::mutex>& lock, Deadline deadline, OperationState const& operation) {
  ++num_followers_;
  followers_changed_->wait_until(lock, deadline, [&] { return operation.done(); });
  --num_followers_;
}

void Waiters::sleep_as_leader(std::unique_lock<std::mutex>& lock, Deadline deadline, OperationState const& operation,
                              std::function<void()> const& poll) {
  arm();
  poll();  // An arrival before arm() took effect rings no doorbell.
  if (!operation.done()) {
    leader_sleeps_for_ = &operation;
    lock.unlock();
    endpoint_.sleep(deadline);
    lock.lock();
    leader_sleeps_for_ = nullptr;
  }
  disarm();
}

}  // namespace headway::comm
