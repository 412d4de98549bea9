// SPDX-License-Identifier: Apache-2.0

// Start of an operation of a device group: compare its messages with the peers' descriptors, choose how blocks travel,
// number the fragments, then enqueue.
//
// Idea: both ranks of a message describe it in shared memory when their hosts start it, and each then reads the
// other's description. Whoever comes second finds a mismatch (size, type, verb, operation number), so a wrong program
// gets an error instead of wrong data. The same race decides the route of a large block. A receiver that comes first
// exports its output, and the sender copies into it. A sender that comes first uses slots, and does not wait for the
// receiver's host.
//
// Example: message 5 from rank 0 to rank 1. Rank 1's host starts first: it writes its descriptor at 5 mod 128 of
// `expected`, finds nothing in `sent`, stores the range of its output, and swaps (6, kDirectly) into the route word.
// Rank 0 then writes `sent`, compares, tries (6, kSlots), finds the word taken, and copies into the output.
//
// Invariants:
// - Message n overwrites the descriptor of message n - 128. It waits until the peer has started message n - 127: then
//   the peer has read the old one.
// - The stores and loads of sequence numbers are sequentially consistent. Two hosts that write and then read cannot
//   both miss the other, which release and acquire alone would allow.
// - A fragment's number is fixed here, before any of it is enqueued. Both ends count alike, so none is sent.
// Complexity: O(blocks) on the host. Between hosts, proxies compare the descriptors (peer_copy/host_proxy.hpp).

#include "device/device_group_impl.hpp"

#include <algorithm>
#include <string>
#include <thread>

namespace headway::comm {

namespace {

/// Longest time that a sender's host waits for a window on the output, if it expects one. Copying 40 MB inside the
/// receiver's device takes as long.
constexpr auto kWindowTime = std::chrono::microseconds(20);

}  // namespace

using peer_copy::Route;
using peer_copy::SyncWords;

DeviceOperationPtr DeviceGroupImpl::start(std::optional<int> max_lag, DeviceCall const& call) {
  throw_if_failed();
  auto const& x = exchange_;
  if (x.own_source.size() != x.own_output.size()) {
    throw UsageError(std::string(verb_name(x.verb)) + ": rank " + std::to_string(rank_) + " sends itself " +
                     std::to_string(x.own_source.size()) + " bytes and expects " + std::to_string(x.own_output.size()));
  }
  peer_copy::ContextScope const scope(*context_);
  auto* const user = static_cast<CUstream>(call.stream);
  refuse_capture(user);
  exchange_.deadline = Clock::now() + call.timeout.value_or(group_.admin().timeout());
  meet_peers(x);
  auto operation = std::make_shared<DeviceOperationImpl>(context_, failure_, new_flight(), x.deadline);
  try {
    // Before any range is looked up: a peer may have freed memory, and an address there may belong to something else
    // now.
    exported_memory_.take_news([this](int peer, std::string const& text) { group_.admin().send_oob(peer, text); });
    exchange_descriptors();
    choose_routes();
    number_fragments(*operation);
    {
      std::lock_guard const lock(watch_mutex_);
      throw_if_failed();
      forget_completed();
      pending_.push_back(operation);
    }
    hand_to_proxy();
    enqueue(user, max_lag, *operation);
  } catch (OperationError const&) {
    throw;
  } catch (std::exception const& error) {  // A partly enqueued operation cannot be undone.
    words_.clear();
    copies_.clear();
    group_.admin().abort(error.what());
    throw;
  }
  if (max_lag) {
    auto& completions = x.channel->completions;
    completions.push_back(operation->completion());
    if (completions.size() > x.channel->max_lag_limit + 1) completions.pop_front();
  }
  ++stats_.operations;
  for (auto const& block : x.sends) stats_.bytes_sent += block.num_bytes;
  for (auto const& block : x.receives) stats_.bytes_received += block.num_bytes;
  return operation;
}

P2PFlight DeviceGroupImpl::new_flight() {
  auto const& x = exchange_;
  P2PFlight flight{.title = {.verb = verb_name(x.verb),
                             .seq = x.channel->num_operations++,
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
    title.seq = is_send ? flight_recorder_.next_send(x.peer) : flight_recorder_.next_receive(x.peer);
  } else if (x.verb == Verb::kAllToAll) {
    title.channel = x.channel->index + (x.is_in_slots ? group_.options().num_channels + x.channel->set->index - 1 : 0);
  }
  return flight;
}

void DeviceGroupImpl::number_fragments(DeviceOperationImpl& operation) {
  auto const assign_fragments = [&](Block& block, std::uint64_t& next) {
    block.first_fragment = next;
    block.num_fragments = exchange_.is_in_slots ? 1 : layout(block.peer).num_fragments(block.num_bytes);
    next = block.end_fragment();
  };
  auto const await = [&](Block const& block, peer_copy::SyncWord word, std::uint64_t value) {
    operation.await({.link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)],
                     .peer = block.peer,
                     .channel = exchange_.channel->index,
                     .word = word,
                     .value = value,
                     .num_bytes = block.num_bytes});
  };
  for (auto& block : exchange_.sends) {
    assign_fragments(block, state(block.peer).fragments_sent);
    auto const num_slots = layout(block.peer).num_slots;
    if (block.route == Route::kDirectly) {
      await(block, &SyncWords::ready, block.message + 1);
    } else if (block.end_fragment() > num_slots) {
      await(block, &SyncWords::consumed, block.end_fragment() - num_slots);
    }
  }
  for (auto& block : exchange_.receives) {
    if (block.route == Route::kDirectly) operation.set_written_by_peers();
    assign_fragments(block, state(block.peer).fragments_received);
    await(block, &SyncWords::arrived, block.end_fragment());
  }
}

peer_copy::MessageDescriptor DeviceGroupImpl::descriptor_of(Block const& block) const {
  return {.size_bytes = block.num_bytes, .match = exchange_.match, .data_type = exchange_.type, .verb = exchange_.verb};
}

void DeviceGroupImpl::hand_to_proxy() {
  auto const hand = [this](Block const& block, bool is_send) {
    auto const& link = exchange_.channel->set->links[static_cast<std::size_t>(block.peer)];
    if (!link->is_remote()) return;
    proxy_->add({link, &link->remote_memory()},
                {.peer = block.peer, .channel = exchange_.channel->index, .is_send = is_send},
                {.descriptor = descriptor_of(block),
                 .first_fragment = block.first_fragment,
                 .num_fragments = block.num_fragments,
                 .is_staged = is_staged(block)});
  };
  for (auto const& block : exchange_.sends) hand(block, true);
  for (auto const& block : exchange_.receives) hand(block, false);
}

void DeviceGroupImpl::exchange_descriptors() {
  int const index = exchange_.channel->index;
  for (auto& block : exchange_.receives) {       // Receives first: peers may be looking for ranges.
    if (link(block.peer).is_remote()) continue;  // The proxies compare these.
    auto& sync_words = link(block.peer).sync_words(index);
    block.message = state(block.peer).messages_expected++;
    exchange_descriptor(sync_words, false, block);
    export_output(sync_words, block);
  }
  for (auto& block : exchange_.sends) {
    if (link(block.peer).is_remote()) continue;
    block.message = state(block.peer).messages_sent++;
    exchange_descriptor(link(block.peer).peer_sync_words(index), true, block);
  }
}

void DeviceGroupImpl::exchange_descriptor(SyncWords& sync_words, bool is_send, Block const& block) {
  auto const seq = block.message;
  wait_for_room(sync_words, is_send, seq, block.peer);
  auto const at = seq % SyncWords::kNumDescriptors;
  auto& own = (is_send ? sync_words.sent : sync_words.expected)[at];
  auto const& other = (is_send ? sync_words.expected : sync_words.sent)[at];
  own.descriptor = descriptor_of(block);
  // Sequentially consistent, like the load below: at least one of the two hosts sees the other's descriptor.
  own.seq_plus_1.store(seq + 1);
  if (other.seq_plus_1.load() != seq + 1 || own.descriptor == other.descriptor) return;
  auto* const name = group_.options().data_type_name;
  group_.admin().abort(is_send ? disagreement(name, rank_, own.descriptor, block.peer, other.descriptor)
                               : disagreement(name, block.peer, other.descriptor, rank_, own.descriptor));
  throw_if_failed();
}

bool DeviceGroupImpl::may_go_directly(Block const& block) const {
  // A message may be sent long before its receive. A block in slots is already where it belongs.
  return !exchange_.is_in_slots && !is_of_messages() && !is_staged(block) && !link(block.peer).is_remote();
}

void DeviceGroupImpl::export_output(SyncWords& sync_words, Block& block) {
  if (!may_go_directly(block)) return;
  auto const range =
      exported_memory_.export_to(block.peer, {reinterpret_cast<std::byte*>(block.address), block.num_bytes});
  bool const has_window = range.segment != 0;
  sync_words.has_windows.store(has_window, std::memory_order_relaxed);
  if (!has_window) return;
  {
    std::lock_guard const lock(watch_mutex_);  // A failure after this point knows of the export.
    throw_if_failed();
  }
  auto& choice = sync_words.route_choices[block.message % SyncWords::kNumDescriptors];
  choice.range = range;
  block.route = choice.choose(block.message, Route::kDirectly);
}

void DeviceGroupImpl::choose_routes() {
  if (std::ranges::none_of(exchange_.sends, [this](auto const& block) { return may_go_directly(block); })) return;
  ipc_exchange_.receive_messages();  // Makes room: peers may send more than the mailbox holds.
  auto const deadline = Clock::now() + kWindowTime;
  for (auto& block : exchange_.sends) {
    if (!may_go_directly(block)) continue;
    auto& sync_words = link(block.peer).peer_sync_words(exchange_.channel->index);
    auto& choice = sync_words.route_choices[block.message % SyncWords::kNumDescriptors];
    // A receiver that had a window for the previous block probably has one for this block.
    while (sync_words.has_windows.load(std::memory_order_relaxed) && !choice.is_chosen(block.message) &&
           Clock::now() < deadline) {
    }
    block.route = choice.choose(block.message, Route::kSlots);
    if (block.route == Route::kDirectly) block.output = exported_memory_.address_of(block.peer, choice.range);
  }
}

void DeviceGroupImpl::wait_for_room(SyncWords const& sync_words, bool is_send, std::uint64_t seq, int peer) {
  // The descriptor to overwrite was read if the peer has started the message after it.
  if (seq + 1 < SyncWords::kNumDescriptors) return;
  auto const& other = (is_send ? sync_words.expected : sync_words.sent)[(seq + 1) % SyncWords::kNumDescriptors];
  while (other.seq_plus_1.load() < seq + 2 - SyncWords::kNumDescriptors) {
    throw_if_failed();
    if (Clock::now() > exchange_.deadline) {
      group_.admin().abort("rank " + std::to_string(peer) + " is " + std::to_string(SyncWords::kNumDescriptors - 2) +
                           " operations on device memory behind rank " + std::to_string(rank_) +
                           ", and started no other in time");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace headway::comm
