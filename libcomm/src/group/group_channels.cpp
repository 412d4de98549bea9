// SPDX-License-Identifier: Apache-2.0

// The channels of a group: which channel a tag belongs to, in which order they move on, and when an operation made of
// messages is complete.
//
// Idea: an operation counts its parts, the messages that it waits for. A channel reports each part that ends, and the
// last one completes the operation, without a search: the operation knows its index in the list of pending ones, and
// the last of the list moves to that index. Example: of the pending [A, B, C], B completes. The list is [A, C] then,
// and C's index is 1 instead of 2.
//
// Invariants:
// - p2p_operations_[operation.pending_index] is that operation, for all that are pending.
// - An operation whose messages are still being added has no index yet. Its parts may end meanwhile; finish_start()
//   sees that.
// - Order in progress(): first the signals (tags without bytes) that waited for credit, since peers wait for them,
//   then large transfers, then new messages, which may use what the first two freed.
//
// Complexity: O(1) per message. Descriptions and counts look at all pending operations and all ranks, and are made
// only when something fails or somebody asks.

#include "group/group_channels.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm {

GroupChannels::GroupChannels(std::unique_ptr<Endpoint> endpoint, GroupOptions const& options, ReceiveLayout layout,
                             ProtocolRules const& rules, Release release)
    : context_(std::move(endpoint), layout, options, rules),
      rendezvous_(context_, options, [this](OperationState& operation) { part_done(operation); }),
      p2p_(context_, rendezvous_, options.unexpected_bytes,
           [this](OperationState& operation) { part_done(operation); }),
      release_(std::move(release)) {
  for (int channel = 0; channel < options.num_channels; ++channel) {
    all_to_alls_.push_back(std::make_unique<AllToAllChannel>(context_, rendezvous_, options, channel));
  }
  context_.stats().receive_buffer_bytes = layout.total_bytes();
}

std::shared_ptr<OperationState> GroupChannels::make_operation(Verb verb, std::uint64_t seq,
                                                              std::chrono::milliseconds timeout, P2PFlight flight) {
  auto operation = std::make_shared<OperationState>();
  operation->reset(verb, seq, timeout);
  if (context_.flight_recorder().is_on()) {
    flight.entry.started = flight.entry.posted = FlightClock::ticks();
    operation->flight = flight;
  }
  return operation;
}

void GroupChannels::finish_start(std::shared_ptr<OperationState> const& operation) {
  if (operation->pending_parts() == 0) {
    if (context_.flight_recorder().is_on()) context_.flight_recorder().complete(operation->flight);
    operation->finish({});
  } else {
    operation->pending_index = p2p_operations_.size();
    p2p_operations_.push_back(operation);
  }
}

void GroupChannels::part_done(OperationState& operation) {
  // The all-to-all channels complete their operations themselves, in order.
  if (operation.verb() == Verb::kAllToAll || operation.pending_parts() != 0) return;
  std::size_t const index = operation.pending_index;
  if (index == OperationState::kNotPending) return;  // Still being started; finish_start() completes it.
  auto& entry = p2p_operations_[index];
  Operations done{std::move(entry)};
  if (index + 1 < p2p_operations_.size()) {
    entry = std::move(p2p_operations_.back());
    entry->pending_index = index;
  }
  p2p_operations_.pop_back();
  operation.pending_index = OperationState::kNotPending;
  if (context_.flight_recorder().is_on()) context_.flight_recorder().complete(operation.flight);
  operation.finish({});
  release_(done);
}

void GroupChannels::message_arrived(int source, Tag tag) {
  if (tag.channel == kP2PChannel || tag.channel == kP2PConsumedChannel) return p2p_.arrived(source, tag);
  if (tag.channel >= kRendezvousReadyChannel && tag.channel <= kRendezvousDataChannel)
    return rendezvous_.arrived(source, tag);
  context_.report_error("rank " + std::to_string(source) + " used the unknown channel " + std::to_string(tag.channel));
}

void GroupChannels::progress() {
  context_.send_signals();
  if (!rendezvous_.idle()) {
    context_.submit();  // Peers wait for these, and the transfers below may take long.
    rendezvous_.progress();
  }
  if (!p2p_operations_.empty()) p2p_.progress();
}

Deadline GroupChannels::revoke_rts(Clock::time_point now) {
  Deadline next = Deadline::max();
  for (auto& channel : all_to_alls_) next = std::min(next, channel->revoke_rts(now));
  return next;
}

void GroupChannels::cancel(Status const& status, Operations& done) {
  // Closes the windows on outputs first: a caller may free its output as soon as its operation is done, and a peer of
  // transport inproc writes to windows itself.
  rendezvous_.cancel();
  for (auto& channel : all_to_alls_) channel->cancel(status, done);
  p2p_.cancel();
  for (auto& operation : p2p_operations_) {
    operation->finish(status);
    done.push_back(std::move(operation));
  }
  p2p_operations_.clear();
}

bool GroupChannels::is_pending() const {
  return !p2p_operations_.empty() || !rendezvous_.idle() ||
         std::ranges::any_of(all_to_alls_, [](auto const& channel) { return !channel->idle(); });
}

bool GroupChannels::needs_polling(bool has_events) const {
  return std::ranges::any_of(all_to_alls_, [](auto const& channel) { return channel->needs_polling(); }) ||
         context_.has_signals() || (has_events ? p2p_.is_sending() : !p2p_operations_.empty()) || !rendezvous_.idle();
}

bool GroupChannels::needs(int peer) const {
  return p2p_.needs(peer) || rendezvous_.busy_with(peer) ||
         std::ranges::any_of(all_to_alls_, [&](auto const& channel) { return channel->needs(peer); });
}

std::string GroupChannels::describe_missing_all_to_all() const {
  for (auto const& channel : all_to_alls_) {
    if (auto text = channel->describe_missing(); !text.empty()) return text;
  }
  return "";
}

std::string GroupChannels::describe_missing_message() const {
  if (auto text = p2p_.describe_missing(); !text.empty()) return text;
  for (auto const& operation : p2p_operations_) {
    auto const text = rendezvous_.describe_missing(*operation);
    if (text.empty()) continue;
    if (operation->verb() == Verb::kSend) return "message " + text;
    return std::string(verb_name(operation->verb())) + " as collective " + std::to_string(operation->seq()) + " " +
           text;
  }
  return "";
}

std::shared_ptr<OperationState> GroupChannels::find_undelivered() const {
  auto const receiving = p2p_.receiving_operations();
  auto const lacks_nothing = [&](OperationState const& operation) {
    if (receiving.contains(&operation)) return false;
    for (int peer = 0; peer < context_.size(); ++peer) {
      if (rendezvous_.receives_from(peer, operation)) return false;
    }
    return true;
  };
  auto const found =
      std::ranges::find_if(p2p_operations_, [&](auto const& operation) { return lacks_nothing(*operation); });
  return found == p2p_operations_.end() ? nullptr : *found;
}

std::string GroupChannels::describe_undelivered(OperationState const& operation) const {
  auto const name = std::string(verb_name(operation.verb())) + " ";
  if (auto text = rendezvous_.describe_missing(operation); !text.empty()) return name + text;
  for (int peer = 0; peer < context_.size(); ++peer) {
    if (!p2p_.has_queued(peer, operation) && !p2p_.has_unflushed(peer, operation)) continue;
    return name + "waits for rank " + std::to_string(peer) + " to take messages";
  }
  return name + "is not delivered";
}

Deadline GroupChannels::earliest_deadline(Clock::time_point now) const {
  Deadline earliest = Deadline::max();
  for (auto const& channel : all_to_alls_) earliest = std::min(earliest, channel->earliest_deadline(now));
  for (auto const& operation : p2p_operations_) earliest = std::min(earliest, operation->deadline(now));
  return earliest;
}

Progress GroupChannels::completed_counts() const {
  Progress progress{.all_to_alls = {}, .collectives = p2p_.num_collectives()};
  for (auto const& channel : all_to_alls_) progress.all_to_alls.push_back(channel->num_completed());
  for (auto const& operation : p2p_operations_) {
    // kSend is the verb of a single message, sent or received: it is no collective.
    if (operation->verb() != Verb::kSend) progress.collectives = std::min(progress.collectives, operation->seq());
  }
  return progress;
}

void GroupChannels::append_completed_flights(FlightClock::Reading const& clock,
                                             std::vector<FlightRecord>& records) const {
  for (auto const& channel : all_to_alls_) channel->append_completed_flights(clock, records);
  context_.flight_recorder().append_completed(clock, records);
}

std::vector<FlightRecord> GroupChannels::pending_flights(FlightClock::Reading const& clock) const {
  std::vector<FlightRecord> records;
  for (auto const& channel : all_to_alls_) channel->append_pending_flights(clock, records);
  for (auto const& operation : p2p_operations_) records.push_back(pending_flight(*operation, clock));
  return records;
}

FlightRecord GroupChannels::pending_flight(OperationState const& operation, FlightClock::Reading const& clock) const {
  bool is_queued = false;
  auto const lacks = [&](int peer) {
    return p2p_.lacks(peer, operation) || rendezvous_.receives_from(peer, operation);
  };
  auto const is_untaken = [&](int peer) {
    bool const waits_for_credit = p2p_.has_queued(peer, operation);
    is_queued = is_queued || waits_for_credit;
    return waits_for_credit || p2p_.has_unflushed(peer, operation) || rendezvous_.sends_to(peer, operation);
  };
  auto waiting_for = select_ranks(context_.size(), lacks, is_untaken);
  auto record = make_flight_record(operation.flight.title, operation.flight.entry,
                                   is_queued ? FlightState::kQueued : FlightState::kPosted, clock);
  if (is_queued) record.posted = {};
  record.waiting_for = std::move(waiting_for);
  return record;
}

}  // namespace headway::comm
