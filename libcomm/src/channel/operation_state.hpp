// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/message_header.hpp"
#include "headway/comm/group.hpp"
#include "observe/flight_recorder.hpp"

#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace headway::comm {

/// Common state of all kinds of operations. Written under the group's lock. done() may be called without it, and so may
/// the other getters once done() returned true.
class OperationState : public Operation {
 public:
  [[nodiscard]] bool done() const override { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] Status status() const override { return status_; }
  [[nodiscard]] std::uint64_t seq() const override { return seq_; }
  [[nodiscard]] int source() const override { return source_; }

  /// Resets the state for an operation that starts now.
  void reset(Verb verb, std::uint64_t seq, std::chrono::milliseconds timeout) {
    done_.store(false, std::memory_order_relaxed);
    status_ = Status();
    seq_ = seq;
    source_ = -1;
    verb_ = verb;
    pending_parts_ = 0;
    timeout_ = timeout;
    deadline_ = Deadline();
    callbacks_.clear();
    timed_out_waits = {};
  }

  /// Ends the operation with `status`. The release store pairs with the acquire load in done().
  void finish(Status status) {
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
  }

  [[nodiscard]] Verb verb() const { return verb_; }
  void set_source(int source) { source_ = source; }
  /// Deadline of the operation. The first call sets it, so that a fast operation never reads the clock.
  [[nodiscard]] Deadline deadline(Clock::time_point now) {
    if (deadline_ == Deadline()) deadline_ = now + timeout_;  // `timeout_` is at most kLongestTimeout.
    return deadline_;
  }

  /// Number of parts (messages to send and to receive) that are not done yet.
  [[nodiscard]] int pending_parts() const { return pending_parts_; }
  void add_parts(int count) { pending_parts_ += count; }
  void part_done() { --pending_parts_; }

  /// Index among the group's pending point-to-point operations; kNotPending: still being started, or done.
  std::size_t pending_index = kNotPending;
  static constexpr std::size_t kNotPending = std::numeric_limits<std::size_t>::max();

  /// Time of waits for it that reached their limit before it was done. The wait that sees its end records them, too.
  Clock::duration timed_out_waits{};

  /// Flight record of an operation made of point-to-point messages, while the flight recorder is on.
  P2PFlight flight;

  void add_callback(std::function<void()> callback) { callbacks_.push_back(std::move(callback)); }
  [[nodiscard]] std::vector<std::function<void()>> take_callbacks() { return std::exchange(callbacks_, {}); }
  [[nodiscard]] bool has_callbacks() const { return !callbacks_.empty(); }

 private:
  std::atomic<bool> done_ = false;
  Status status_;
  std::uint64_t seq_ = 0;
  int source_ = -1;
  Verb verb_ = Verb::kAllToAll;
  int pending_parts_ = 0;
  std::chrono::milliseconds timeout_{};
  Deadline deadline_{};
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace headway::comm
