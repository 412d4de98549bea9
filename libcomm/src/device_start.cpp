// How an operation of a device group starts: what it means is compared with what its peers mean, and its fragments get
// their numbers; then it is enqueued.

#include "device_group_impl.hpp"

#include <string>
#include <thread>

namespace headway::comm {

using nvlink::Board;

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
  auto operation = std::make_shared<DeviceOperationImpl>(context_, failure_, x.verb, x.channel->index,
                                                         x.channel->num_operations++, x.deadline);
  try {
    note_messages();
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
  } catch (std::exception const& error) {  // What is enqueued in part cannot be taken back.
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

void DeviceGroupImpl::number_fragments(DeviceOperationImpl& operation) {
  AwaitedWord word{};
  word.channel = exchange_.channel->index;
  word.is_credit = true;
  for (auto& block : exchange_.sends) {
    block.first_fragment = state(block.peer).fragments_sent;
    block.num_fragments = exchange_.is_in_slots ? 1 : layout(block.peer).num_fragments(block.num_bytes);
    auto const end = state(block.peer).fragments_sent += block.num_fragments;
    auto const num_slots = layout(block.peer).num_slots;
    if (end <= num_slots) continue;
    word.link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)];
    word.peer = block.peer;
    word.value = end - num_slots;
    word.num_bytes = block.num_bytes;
    operation.await(word);
  }
  word.is_credit = false;
  for (auto& block : exchange_.receives) {
    block.first_fragment = state(block.peer).fragments_received;
    block.num_fragments = exchange_.is_in_slots ? 1 : layout(block.peer).num_fragments(block.num_bytes);
    word.link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)];
    word.peer = block.peer;
    word.value = state(block.peer).fragments_received += block.num_fragments;
    word.num_bytes = block.num_bytes;
    operation.await(word);
  }
}

void DeviceGroupImpl::hand_to_relay() {
  auto const hand = [this](Block const& block, bool is_send) {
    for (auto i = block.first_fragment; i < block.first_fragment + block.num_fragments; ++i) {
      nvlink::Relay::Fragment const fragment{.number = i,
                                             .num_bytes = fragment_size(block, i),
                                             .is_staged = is_staged(block),
                                             .data_type = exchange_.type};
      auto const& link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)];
      relay_->add({link, &link->remote_memory()}, block.peer, exchange_.channel->index, is_send, fragment);
    }
  };
  for (auto const& block : exchange_.sends) {
    if (link(block.peer).is_remote()) hand(block, true);
  }
  for (auto const& block : exchange_.receives) {
    if (link(block.peer).is_remote()) hand(block, false);
  }
}

void DeviceGroupImpl::note_messages() {
  int const index = exchange_.channel->index;
  for (auto const& block : exchange_.sends) {
    if (link(block.peer).is_remote()) continue;  // The group compares what both say.
    note(link(block.peer).peer_board(index), true, state(block.peer).messages_sent++, block);
  }
  for (auto const& block : exchange_.receives) {
    if (link(block.peer).is_remote()) continue;
    note(link(block.peer).board(index), false, state(block.peer).messages_expected++, block);
  }
}

void DeviceGroupImpl::note(Board& board, bool is_send, std::uint64_t number, Block const& block) {
  wait_for_room(board, is_send, number, block.peer);
  auto const at = number % Board::kNumNotes;
  auto& own = (is_send ? board.sent : board.expected)[at];
  auto const& other = (is_send ? board.expected : board.sent)[at];
  own.size_bytes = block.num_bytes;
  own.match = exchange_.match;
  own.data_type = exchange_.type;
  own.verb = static_cast<std::uint16_t>(exchange_.verb);
  // Sequentially consistent, as the load below: of the two hosts at least one sees the other's note.
  own.number_plus_1.store(number + 1);
  if (other.number_plus_1.load() != number + 1) return;
  bool const agrees = own.size_bytes == other.size_bytes && own.match == other.match &&
                      own.data_type == other.data_type && own.verb == other.verb;
  if (agrees) [[likely]] {
    return;
  }
  auto const tell = [](nvlink::MessageNote const& note) {
    return std::to_string(note.size_bytes) + " bytes of type " + std::to_string(note.data_type) + " in " +
           verb_name(static_cast<Verb>(note.verb)) + " " + std::to_string(note.match);
  };
  auto const sender = std::to_string(is_send ? rank_ : block.peer);
  auto const receiver = std::to_string(is_send ? block.peer : rank_);
  group_.abort("rank " + sender + " sends " + tell(is_send ? own : other) + " to rank " + receiver +
               ", which expects " + tell(is_send ? other : own));
  throw_if_failed();
}

void DeviceGroupImpl::wait_for_room(Board const& board, bool is_send, std::uint64_t number, int peer) {
  // The peer must be past the message whose note is overwritten: it has then read it.
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
