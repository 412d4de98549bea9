// Start of an operation of a device group: compare its messages with the peers' notes, choose how blocks travel, number
// the fragments, then enqueue.

#include "device_group_impl.hpp"

#include <algorithm>
#include <string>
#include <thread>

namespace headway::comm {

namespace {

/// Longest time that a sender's host looks for a place in the output, where it expects one. Copying 40 MB inside the
/// receiver's device takes as long.
constexpr auto kPlaceTime = std::chrono::microseconds(20);

}  // namespace

using nvlink::Board;
using nvlink::Way;

DeviceOperationPtr DeviceGroupImpl::start(std::optional<int> max_lag, DeviceCall const& call) {
  throw_if_failed();
  auto const& x = exchange_;
  if (x.own_source.size() != x.own_output.size()) {
    throw UsageError(std::string(verb_name(x.verb)) + ": rank " + std::to_string(rank_) + " sends itself " +
                     std::to_string(x.own_source.size()) + " bytes and expects " + std::to_string(x.own_output.size()));
  }
  nvlink::ContextScope const scope(*context_);
  auto* const user = static_cast<CUstream>(call.stream);
  refuse_capture(user);
  exchange_.deadline = Clock::now() + call.timeout.value_or(group_.timeout());
  meet_peers(x);
  auto operation = std::make_shared<DeviceOperationImpl>(context_, failure_, new_flight(), x.deadline);
  try {
    offered_memory_.take_news([this](int peer, std::string const& text) { group_.tell(peer, text); });
    note_messages();
    choose_ways();
    number_fragments(*operation);
    {
      std::lock_guard const lock(watch_mutex_);
      throw_if_failed();
      forget_completed();
      pending_.push_back(operation);
    }
    hand_to_relay();
    enqueue(user, max_lag, *operation);
  } catch (OperationError const&) {
    throw;
  } catch (std::exception const& error) {  // A partly enqueued operation cannot be undone.
    words_.clear();
    copies_.clear();
    group_.abort(error.what());
    throw;
  }
  if (max_lag) {
    auto& completions = x.channel->completions;
    completions.push_back(operation->completion());
    if (completions.size() > x.channel->most_lag + 1) completions.pop_front();
  }
  ++stats_.operations;
  for (auto const& block : x.sends) stats_.bytes_sent += block.num_bytes;
  for (auto const& block : x.receives) stats_.bytes_received += block.num_bytes;
  return operation;
}

PairFlight DeviceGroupImpl::new_flight() {
  auto const& x = exchange_;
  PairFlight flight{.title = {.verb = verb_name(x.verb),
                              .number = x.channel->num_operations++,
                              .peer = x.peer,
                              .device = context_->ordinal()},
                    .entry = {.input_bytes = x.own_source.size(),
                              .output_bytes = x.own_output.size(),
                              .started = FlightClock::ticks(),
                              .data_type = x.type}};
  for (auto const& block : x.sends) flight.entry.input_bytes += block.num_bytes;
  for (auto const& block : x.receives) flight.entry.output_bytes += block.num_bytes;
  auto& title = flight.title;
  if (is_of_messages()) {
    bool const is_send = !x.sends.empty();
    title.verb = is_send ? "send" : "receive";
    title.number = is_send ? flight_recorder_.next_send(x.peer) : flight_recorder_.next_receive(x.peer);
  } else if (x.verb == Verb::kAllToAll) {
    title.channel = x.channel->index + (x.is_in_slots ? group_.options().num_channels + x.channel->set->number - 1 : 0);
  }
  return flight;
}

void DeviceGroupImpl::number_fragments(DeviceOperationImpl& operation) {
  auto const number = [&](Block& block, std::uint64_t& next) {
    block.first_fragment = next;
    block.num_fragments = exchange_.is_in_slots ? 1 : layout(block.peer).num_fragments(block.num_bytes);
    next = block.end_fragment();
  };
  auto const await = [&](Block const& block, nvlink::BoardWord word, std::uint64_t value) {
    operation.await({.link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)],
                     .peer = block.peer,
                     .channel = exchange_.channel->index,
                     .word = word,
                     .value = value,
                     .num_bytes = block.num_bytes});
  };
  for (auto& block : exchange_.sends) {
    number(block, state(block.peer).fragments_sent);
    auto const num_slots = layout(block.peer).num_slots;
    if (block.way == Way::kDirectly) {
      await(block, &Board::ready, block.message + 1);
    } else if (block.end_fragment() > num_slots) {
      await(block, &Board::consumed, block.end_fragment() - num_slots);
    }
  }
  for (auto& block : exchange_.receives) {
    if (block.way == Way::kDirectly) operation.set_written_by_peers();
    number(block, state(block.peer).fragments_received);
    await(block, &Board::arrived, block.end_fragment());
  }
}

nvlink::MessageMeaning DeviceGroupImpl::meaning_of(Block const& block) const {
  return {.size_bytes = block.num_bytes, .match = exchange_.match, .data_type = exchange_.type, .verb = exchange_.verb};
}

void DeviceGroupImpl::hand_to_relay() {
  auto const hand = [this](Block const& block, bool is_send) {
    auto const& link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)];
    if (!link->is_remote()) return;
    relay_->add({link, &link->remote_memory()},
                {.peer = block.peer, .channel = exchange_.channel->index, .is_send = is_send},
                {.meaning = meaning_of(block),
                 .first_fragment = block.first_fragment,
                 .num_fragments = block.num_fragments,
                 .is_staged = is_staged(block)});
  };
  for (auto const& block : exchange_.sends) hand(block, true);
  for (auto const& block : exchange_.receives) hand(block, false);
}

void DeviceGroupImpl::note_messages() {
  int const index = exchange_.channel->index;
  for (auto& block : exchange_.receives) {       // Receives first: peers may be looking for places.
    if (link(block.peer).is_remote()) continue;  // The relays compare these.
    auto& board = link(block.peer).board(index);
    block.message = state(block.peer).messages_expected++;
    note(board, false, block);
    offer_output(board, block);
  }
  for (auto& block : exchange_.sends) {
    if (link(block.peer).is_remote()) continue;
    block.message = state(block.peer).messages_sent++;
    note(link(block.peer).peer_board(index), true, block);
  }
}

void DeviceGroupImpl::note(Board& board, bool is_send, Block const& block) {
  auto const number = block.message;
  wait_for_room(board, is_send, number, block.peer);
  auto const at = number % Board::kNumNotes;
  auto& own = (is_send ? board.sent : board.expected)[at];
  auto const& other = (is_send ? board.expected : board.sent)[at];
  own.meaning = meaning_of(block);
  // Sequentially consistent, like the load below: at least one of the two hosts sees the other's note.
  own.number_plus_1.store(number + 1);
  if (other.number_plus_1.load() != number + 1 || own.meaning == other.meaning) return;
  auto* const name = group_.options().data_type_name;
  group_.abort(is_send ? disagreement(name, rank_, own.meaning, block.peer, other.meaning)
                       : disagreement(name, block.peer, other.meaning, rank_, own.meaning));
  throw_if_failed();
}

bool DeviceGroupImpl::may_go_directly(Block const& block) const {
  // A message may be sent long before its receive. A block in slots is already where it belongs.
  return !exchange_.is_in_slots && !is_of_messages() && !is_staged(block) && !link(block.peer).is_remote();
}

void DeviceGroupImpl::offer_output(Board& board, Block& block) {
  if (!may_go_directly(block)) return;
  auto const place = offered_memory_.offer(block.peer, {reinterpret_cast<std::byte*>(block.address), block.num_bytes});
  bool const has_place = place.segment != 0;
  board.has_places.store(has_place, std::memory_order_relaxed);
  if (!has_place) return;
  {
    std::lock_guard const lock(watch_mutex_);  // A failure after this point knows of the offer.
    throw_if_failed();
  }
  auto& placement = board.placements[block.message % Board::kNumNotes];
  placement.place = place;
  block.way = placement.choose(block.message, Way::kDirectly);
}

void DeviceGroupImpl::choose_ways() {
  if (std::ranges::none_of(exchange_.sends, [this](auto const& block) { return may_go_directly(block); })) return;
  introductions_.take_letters();  // Makes room: peers may offer more than the mailbox holds.
  auto const deadline = Clock::now() + kPlaceTime;
  for (auto& block : exchange_.sends) {
    if (!may_go_directly(block)) continue;
    auto& board = link(block.peer).peer_board(exchange_.channel->index);
    auto& placement = board.placements[block.message % Board::kNumNotes];
    // A receiver that had a place for the previous block probably has one for this block.
    while (board.has_places.load(std::memory_order_relaxed) && !placement.is_chosen(block.message) &&
           Clock::now() < deadline) {
    }
    block.way = placement.choose(block.message, Way::kSlots);
    if (block.way == Way::kDirectly) block.output = offered_memory_.address_of(block.peer, placement.place);
  }
}

void DeviceGroupImpl::wait_for_room(Board const& board, bool is_send, std::uint64_t number, int peer) {
  // The note to overwrite was read if the peer has started the message after it.
  if (number + 1 < Board::kNumNotes) return;
  auto const& other = (is_send ? board.expected : board.sent)[(number + 1) % Board::kNumNotes];
  while (other.number_plus_1.load() < number + 2 - Board::kNumNotes) {
    throw_if_failed();
    if (Clock::now() > exchange_.deadline) {
      group_.abort("rank " + std::to_string(peer) + " is " + std::to_string(Board::kNumNotes - 2) +
                   " operations on device memory behind rank " + std::to_string(rank_) +
                   ", and started no other in time");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace headway::comm
