// SPDX-License-Identifier: Apache-2.0

// Schedule of injected faults; fault_schedule.hpp has the rules.
//
// Example: arrivals a, b, c in poll 5. b is drawn (one in four) and held for 3 polls. Poll 5 delivers a and c in
// random order, poll 8 delivers b. c was drawn (one in eight) for a repeat and comes again within 40 polls.

#include "transport/checked/fault_schedule.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headway::comm {

void FaultSchedule::add(Notification const& notification) {
  std::uint64_t const held_polls = one_in(4) ? 1 + below(kMaxHoldPolls) : 0;
  originals_.push_back({notification, poll_ + held_polls});
}

std::vector<FaultSchedule::Notification> FaultSchedule::take_due() {
  std::vector<Notification> due;
  for (Notification const& notification : take_due_originals()) release(notification, due);
  release_repeats([&](Repeat const& repeat) { return repeat.due_poll <= poll_; }, due);
  ++poll_;
  return due;
}

std::vector<FaultSchedule::Notification> FaultSchedule::take_all_from(int source) {
  std::vector<Notification> taken;
  std::erase_if(originals_, [&](Original const& original) {
    if (original.notification.source != source) return false;
    taken.push_back(original.notification);
    return true;
  });
  std::erase_if(repeats_, [&](Repeat const& repeat) { return repeat.notification.source == source; });
  return taken;
}

std::vector<FaultSchedule::Notification> FaultSchedule::take_due_originals() {
  std::vector<Notification> due;
  std::erase_if(originals_, [&](Original const& original) {
    if (original.due_poll > poll_) return false;
    due.push_back(original.notification);
    return true;
  });
  // Fisher-Yates. The draws of std::shuffle differ between standard libraries.
  for (std::size_t left = due.size(); left > 1; --left) std::swap(due[left - 1], due[below(left)]);
  return due;
}

void FaultSchedule::release(Notification const& notification, std::vector<Notification>& due) {
  due.push_back(notification);
  std::uint64_t const arrivals = ++delivered_from_[notification.source];
  if (one_in(8)) {
    repeats_.push_back({notification, poll_ + below(kMaxRepeatPolls), arrivals + 1 + below(kMaxRepeatDistance)});
  }
  release_repeats(
      [&](Repeat const& repeat) {
        return repeat.notification.source == notification.source && repeat.due_arrivals <= arrivals;
      },
      due);
}

template <typename Predicate>
void FaultSchedule::release_repeats(Predicate is_due, std::vector<Notification>& due) {
  std::erase_if(repeats_, [&](Repeat const& repeat) {
    if (!is_due(repeat)) return false;
    due.push_back(repeat.notification);
    return true;
  });
}

}  // namespace headway::comm
