// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/tag.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace headway::comm {

/// Decides with a seeded generator when, in which order and how often an arrival is reported to the caller. So tests
/// show that receivers tolerate late, reordered and repeated notifications.
///
/// Every arrival is held for at most kMaxHoldPolls polls. A repeat follows its original within kMaxRepeatPolls polls
/// and within kMaxRepeatDistance arrivals of the same source. Tags number the fragments of a block modulo 256, and
/// fewer pass in between, so the repeated tag still names the same fragment. The same seed and the same calls give the
/// same schedule.
class FaultSchedule {
 public:
  static constexpr std::uint64_t kMaxHoldPolls = 24;
  static constexpr std::uint64_t kMaxRepeatPolls = 40;
  static constexpr std::uint64_t kMaxRepeatDistance = 32;

  struct Notification {
    int source = 0;
    Tag tag;
  };

  explicit FaultSchedule(std::uint64_t seed) : random_(seed) {}

  /// Adds an arrival that the endpoint below the checked one reported in the current poll.
  void add(Notification const& notification);
  /// Ends the current poll. @returns the arrivals to deliver now, in order.
  std::vector<Notification> take_due();
  /// Removes and returns all undelivered arrivals from `source`. Repeats of its earlier arrivals are dropped.
  std::vector<Notification> take_all_from(int source);
  [[nodiscard]] bool empty() const { return originals_.empty() && repeats_.empty(); }

 private:
  struct Original {
    Notification notification;
    std::uint64_t due_poll;  ///< Number of the poll in which it is delivered.
  };
  struct Repeat {
    Notification notification;
    std::uint64_t due_poll;
    std::uint64_t due_arrivals;  ///< Latest value of delivered_from_[source] at which the repeat is delivered.
  };

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  /// Removes the originals that are due, in random order.
  std::vector<Notification> take_due_originals();
  /// Delivers an original, may schedule a repeat of it, and delivers the repeats of its source that are due.
  void release(Notification const& notification, std::vector<Notification>& due);
  template <typename Predicate>
  void release_repeats(Predicate is_due, std::vector<Notification>& due);

  std::mt19937_64 random_;
  std::uint64_t poll_ = 0;
  std::vector<Original> originals_;
  std::vector<Repeat> repeats_;
  std::map<int, std::uint64_t> delivered_from_;  ///< Number of originals delivered, by source.
};

}  // namespace headway::comm
