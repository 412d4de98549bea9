// SPDX-License-Identifier: Apache-2.0

// Reports of an all-to-all channel: disagreements between ranks, missing data, and flight records.

#include "channel/all_to_all_channel.hpp"

#include <string>

namespace headway::comm {

namespace {

std::string name_of(AllToAllOperation const& operation) {
  return "operation " + std::to_string(operation.seq()) + " of all_to_all_v";
}

}  // namespace

void AllToAllChannel::report_disagreement(AllToAllOperation const& operation, int source, MessageHeader const& header) {
  std::size_t const expected = operation.receives[static_cast<std::size_t>(source)].size();
  std::string text = name_of(operation) + ": rank " + std::to_string(source) + " and rank " +
                     std::to_string(context_.rank()) + " disagree on the ";
  if (header.operation != static_cast<std::uint32_t>(operation.seq()) || header.verb != Verb::kAllToAll) {
    text += "operation: the message is of " + std::to_string(header.operation);
  } else if (header.size_bytes > expected || (header.size_bytes < expected && operation.received_bytes.empty())) {
    text += "size: " + std::to_string(header.size_bytes) + " bytes were sent and " + std::to_string(expected) +
            (operation.received_bytes.empty() ? " are expected" : " are the capacity");
  } else {
    text += "data type: " + context_.name_of(header.data_type) + " was sent and " +
            context_.name_of(operation.data_type) + " is expected";
  }
  context_.report_error(std::move(text));
}

std::string AllToAllChannel::describe_missing() const {
  if (operations_.empty()) return {};
  auto const& operation = *operations_.front();
  std::string text;
  for (int source = 0; source < context_.size(); ++source) {
    if (source == context_.rank() || has_arrived(operation, source)) continue;
    text += (text.empty() ? " lacks " : " and ") +
            std::to_string(operation.receives[static_cast<std::size_t>(source)].size()) + " bytes from rank " +
            std::to_string(source);
  }
  auto const add = [&](std::string const& part) { text += (text.empty() ? " " : " and ") + part; };
  if (auto const transfers = rendezvous_.describe_missing(operation); !transfers.empty()) add(transfers);
  for (auto const& put : operation.unflushed) {
    if (!sender_.is_flushed(put)) add("waits for what it sent to reach rank " + std::to_string(put.peer));
  }
  if (operation.seq() == num_posted_ && may_post(num_posted_)) {
    add("waits for room at rank " + std::to_string(sender_.next_peer(operation)));
  }
  if (text.empty()) text = " is under way";
  return name_of(operation) + text + (operations_.size() > 1 ? " (and later operations)" : "");
}

bool AllToAllChannel::lacks(AllToAllOperation const& operation, int source) const {
  return source != context_.rank() && (!has_arrived(operation, source) || rendezvous_.receives_from(source, operation));
}

bool AllToAllChannel::is_untaken(AllToAllOperation const& operation, int peer) const {
  return rendezvous_.sends_to(peer, operation) || sender_.has_unflushed(operation, peer);
}

void AllToAllChannel::append_pending_flights(FlightClock::Reading const& clock,
                                             std::vector<FlightRecord>& records) const {
  for (auto const& operation : operations_) {
    std::uint64_t const seq = operation->seq();
    FlightEntry const* const entry = observers_.flights().find(seq);
    FlightEntry const sizes{.input_bytes = total_bytes(operation->sends),
                            .output_bytes = total_bytes(operation->receives),
                            .data_type = operation->data_type};
    auto const state = seq < num_posted_ ? FlightState::kPosted : FlightState::kQueued;
    auto record = make_flight_record(flight_title(channel_, seq), entry == nullptr ? sizes : *entry, state, clock);
    record.waiting_for = select_ranks(
        context_.size(), [&](int source) { return lacks(*operation, source); },
        [&](int peer) { return is_untaken(*operation, peer); });
    records.push_back(std::move(record));
  }
}

}  // namespace headway::comm
