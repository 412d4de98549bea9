// Reports of a ring channel: disagreements between ranks, missing data, and flight records.

#include "ring_channel.hpp"

#include <algorithm>
#include <string>

namespace headway::comm {

namespace {

std::string name_of(RingOperation const& operation) {
  return "operation " + std::to_string(operation.number()) + " of all_to_all_v";
}

}  // namespace

void RingChannel::report_disagreement(RingOperation const& operation, int source, MessageHeader const& header) {
  std::size_t const expected = operation.receives[static_cast<std::size_t>(source)].size();
  std::string text = name_of(operation) + ": rank " + std::to_string(source) + " and rank " +
                     std::to_string(wire_.rank()) + " disagree on the ";
  if (header.operation != static_cast<std::uint32_t>(operation.number()) || header.verb != Verb::kAllToAll) {
    text += "operation: the message is of " + std::to_string(header.operation);
  } else if (header.size_bytes != expected) {
    text += "size: " + std::to_string(header.size_bytes) + " bytes were sent and " + std::to_string(expected) +
            " are expected";
  } else {
    text += "data type: " + wire_.name_of(header.data_type) + " was sent and " + wire_.name_of(operation.data_type) +
            " is expected";
  }
  wire_.report_error(std::move(text));
}

std::string RingChannel::describe_missing() const {
  if (operations_.empty()) return {};
  auto const& operation = *operations_.front();
  std::string text;
  for (int source = 0; source < wire_.size(); ++source) {
    if (source == wire_.rank() || has_arrived(operation, source)) continue;
    text += (text.empty() ? " lacks " : " and ") +
            std::to_string(operation.receives[static_cast<std::size_t>(source)].size()) + " bytes from rank " +
            std::to_string(source);
  }
  auto const add = [&](std::string const& part) { text += (text.empty() ? " " : " and ") + part; };
  if (auto const transfers = transfers_.describe_missing(operation); !transfers.empty()) add(transfers);
  for (auto const& put : operation.unflushed) {
    if (!is_flushed(put)) add("waits for what it sent to reach rank " + std::to_string(put.peer));
  }
  if (operation.number() == num_posted_ && may_post(num_posted_)) {
    add("waits for room at rank " + std::to_string(next_peer(operation)));
  }
  if (text.empty()) text = " is under way";
  return name_of(operation) + text + (operations_.size() > 1 ? " (and later operations)" : "");
}

FlightTitle RingChannel::flight_title(std::uint64_t number) const {
  return {.verb = verb_name(Verb::kAllToAll), .number = number, .channel = ring_};
}

bool RingChannel::lacks(RingOperation const& operation, int source) const {
  return source != wire_.rank() && (!has_arrived(operation, source) || transfers_.takes_from(source, operation));
}

bool RingChannel::is_untaken(RingOperation const& operation, int peer) const {
  return transfers_.gives_to(peer, operation) || std::ranges::any_of(operation.unflushed, [&](auto const& put) {
           return put.peer == peer && !is_flushed(put);
         });
}

void RingChannel::append_completed_flights(FlightClock::Reading const& clock,
                                           std::vector<FlightRecord>& records) const {
  for (std::uint64_t number = flights_.first(num_started_); number < num_completed_; ++number) {
    records.push_back(make_flight_record(flight_title(number), flights_[number], FlightState::kCompleted, clock));
  }
}

void RingChannel::append_pending_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const {
  for (auto const& operation : operations_) {
    std::uint64_t const number = operation->number();
    bool const is_kept = number >= flights_.first(num_started_);
    FlightEntry const sizes{.input_bytes = total_bytes(operation->sends),
                            .output_bytes = total_bytes(operation->receives),
                            .data_type = operation->data_type};
    auto const state = number < num_posted_ ? FlightState::kPosted : FlightState::kQueued;
    auto record = make_flight_record(flight_title(number), is_kept ? flights_[number] : sizes, state, clock);
    record.waiting_for = select_ranks(
        wire_.size(), [&](int source) { return lacks(*operation, source); },
        [&](int peer) { return is_untaken(*operation, peer); });
    records.push_back(std::move(record));
  }
}

}  // namespace headway::comm
