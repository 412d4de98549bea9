// SPDX-License-Identifier: Apache-2.0

// Enqueues an operation of a device group on streams.
//
// Terms (peer_copy/link.hpp): a fragment of a block travels through a slot in the receiver's device memory, or through
// a stage (host memory) if it is small. A direct send writes into the output instead. Words are counters in host
// memory that streams write and wait for: `arrived`, `consumed` (slots that are free again) and `ready` (outputs that
// peers may write).
//
// Idea: a small operation runs on one stream (two if ranks may run max_lag > 0 operations ahead), since streams wait
// longer for each other than such blocks take. A large one sends on one stream and receives on another. Its copies run
// one after the other: one copy engine nearly fills the links, and every rank starts with another peer, so no two ranks
// send to one receiver at a time.
//
// Example: all-to-all of four ranks. Rank 1 sends to 2, 3 and 0, in this order, and receives from 0, 3 and 2.
//
// Invariants:
// - Blocks are sent and received in turns, run by run (a run is the fragments of one copy), in the order of the peers
//   on both sides. A run waits for slots that earlier runs free, never for a later one, so one stream for all peers
//   cannot deadlock.
// - A direct send waits for a word that the receiver writes on a stream of its own.
// Complexity: one driver call per copy (from CUDA 13 on per batch of copies), and one per batch of words before and
// after it. Measured on four H100, even, 128 and 512 MiB a rank: with a stream per peer instead, exchanges in slots
// that follow each other took up to 1.6 times as long, as copies met at receivers.

#include "device/device_group_impl.hpp"

#include <algorithm>

namespace headway::comm {

namespace {

/// Limit on the total size of blocks that exceed a stage. Up to it, one stream is faster.
constexpr std::size_t kOneStreamBytes = std::size_t{1} << 20;

}  // namespace

using peer_copy::kCreditStep;
using peer_copy::kStageBytes;
using peer_copy::Route;
using peer_copy::SyncWords;

void DeviceGroupImpl::enqueue(CUstream user, std::optional<int> max_lag, DeviceOperationImpl& operation) {
  auto const start = events_->record(user);
  if (fits_one_stream()) {
    enqueue_on_one_stream(start.get(), max_lag, operation);
  } else {
    enqueue_large(start.get(), max_lag, operation);
  }
}

void DeviceGroupImpl::enqueue_on_one_stream(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation) {
  CUstream const receive = receiver(rank_);
  // If max_lag is 0, nothing is sent before all earlier data was received, so one stream can do both.
  CUstream const send = max_lag == 0 ? receive : sender(rank_);
  after_event(receive, start);
  if (send != receive) {
    after_event(send, start);
    after_bound(send, max_lag);
  }
  for (auto const& block : exchange_.sends) take_over(state(block.peer).sender, send);
  for (auto const& block : exchange_.receives) take_over(state(block.peer).receiver, receive);
  add_whole_sends(send);
  if (send != receive) {
    copies_.enqueue(send);
    words_.enqueue(send);
  }
  bool const is_own_staged = exchange_.own_source.size() <= kStageBytes;
  if (is_own_staged) copies_.add(own_stage(), peer_copy::address_of(exchange_.own_source), exchange_.own_source.size());
  copies_.enqueue(receive);
  if (!is_own_staged) {
    words_.enqueue(receive);
    copy_own(receive);  // Overlaps with the transfer of the blocks.
  }
  add_whole_receives();
  words_.enqueue(receive);
  copies_.enqueue(receive);
  after_stream(receive, send);
  operation.set_completion(events_->record(receive));
  for (auto const& block : exchange_.receives) give_credit(block, block.first_fragment, block.end_fragment());
  words_.enqueue(receive);
}

bool DeviceGroupImpl::fits_one_stream() const {
  auto const fit = [](std::vector<Block> const& blocks) {
    std::size_t above_stages = 0;
    return std::ranges::all_of(blocks, [&](Block const& block) {
      if (block.num_bytes > kStageBytes) above_stages += block.num_bytes;
      return block.num_fragments == 1 && block.route == Route::kSlots && above_stages <= kOneStreamBytes;
    });
  };
  return !is_of_messages() && fit(exchange_.sends) && fit(exchange_.receives);
}

void DeviceGroupImpl::add_whole_sends(CUstream stream) {
  for (auto const& block : exchange_.sends) await_room(block, block.first_fragment);
  words_.enqueue(stream);
  for (auto const& block : exchange_.sends) {
    copies_.add(peer_receive_address(block, block.first_fragment), block.address, block.num_bytes);
    if (!is_staged(block) && link(block.peer).shares_device) count_local_copy(block.num_bytes);
    words_.write(link(block.peer).peer_word(exchange_.channel->index, &SyncWords::arrived), block.first_fragment + 1);
  }
}

void DeviceGroupImpl::add_whole_receives() {
  for (auto const& block : exchange_.receives) {
    words_.wait(link(block.peer).word(exchange_.channel->index, &SyncWords::arrived), block.first_fragment + 1);
    if (exchange_.is_in_slots) continue;
    copies_.add(block.address, receive_address(block, block.first_fragment), block.num_bytes);
    if (!is_staged(block) && !link(block.peer).is_remote()) count_local_copy(block.num_bytes);
  }
  if (exchange_.own_output.size() > kStageBytes) return;
  copies_.add(peer_copy::address_of(exchange_.own_output), own_stage(), exchange_.own_output.size());
}

void DeviceGroupImpl::enqueue_large(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation) {
  auto& x = exchange_;
  open_outputs(start, max_lag);
  CUstream opened = nullptr;
  for (auto& block : x.sends) {
    CUstream const stream = sender(block.peer);
    if (stream != opened) {
      after_event(stream, start);
      after_bound(stream, max_lag);
      opened = stream;
    }
    take_over(state(block.peer).sender, stream);
    if (block.route == Route::kDirectly) send_directly(block, stream);
  }
  in_turns(x.sends, [this](Block& block) { send_fragments(block, sender(block.peer)); });
  bool const is_only_sent = is_of_messages() && x.receives.empty();
  CUstream const last =
      is_only_sent ? sender(x.sends.front().peer) : receiver(x.receives.empty() ? rank_ : x.receives.front().peer);
  if (!is_only_sent) after_event(last, start);
  copy_own(last);
  // Blocks in DeviceSlots (which stay in their slot), and blocks written directly into outputs, need no copy after they
  // have arrived.
  auto const is_cut = [&](Block const& block) { return !x.is_in_slots && block.route == Route::kSlots; };
  for (auto& block : x.receives) {
    take_over(state(block.peer).receiver, last);
    if (!is_cut(block)) block.num_enqueued = block.num_fragments;
  }
  in_turns(x.receives, [this, last](Block& block) { receive_fragments(block, last); });
  for (auto const& block : x.receives) {
    if (is_cut(block)) continue;
    words_.wait(link(block.peer).word(x.channel->index, &SyncWords::arrived), block.end_fragment());
    give_credit(block, block.first_fragment, block.end_fragment());
  }
  words_.enqueue(last);
  CUstream joined = nullptr;
  for (auto const& block : x.sends) {
    CUstream const stream = sender(block.peer);
    if (stream != joined) after_stream(last, stream);
    joined = stream;
  }
  operation.set_completion(events_->record(last));
}

template <class Enqueue>
void DeviceGroupImpl::in_turns(std::vector<Block>& blocks, Enqueue enqueue) {
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (auto& block : blocks) {
      if (block.num_enqueued == block.num_fragments) continue;
      enqueue(block);
      is_done = false;
    }
  }
}

void DeviceGroupImpl::open_outputs(CUevent start, std::optional<int> max_lag) {
  auto& channel = *exchange_.channel;
  for (auto const& block : exchange_.receives) {
    if (block.route != Route::kDirectly) continue;
    words_.write(link(block.peer).peer_word(channel.index, &SyncWords::ready), block.message + 1);
  }
  if (words_.empty()) return;
  if (channel.credits == nullptr) channel.credits = std::make_unique<peer_copy::Stream>(context_);
  after_event(channel.credits->get(), start);
  after_bound(channel.credits->get(), max_lag);
  words_.enqueue(channel.credits->get());
}

void DeviceGroupImpl::send_fragments(Block& block, CUstream stream) {
  auto const& to = link(block.peer);
  auto const [fragment, part] = next_run(block);
  await_room(block, block.next_fragment() - 1);
  words_.enqueue(stream);
  copies_.add(peer_receive_address(block, fragment), block.address + part.offset, part.num_bytes);
  copies_.enqueue(stream);
  if (!is_staged(block) && to.shares_device) count_local_copy(part.num_bytes);
  words_.write(to.peer_word(exchange_.channel->index, &SyncWords::arrived), block.next_fragment());
  words_.enqueue(stream);
}

void DeviceGroupImpl::send_directly(Block& block, CUstream stream) {
  auto const& to = link(block.peer);
  int const index = exchange_.channel->index;
  if (to.sync_words(index).ready.load(std::memory_order_acquire) <= block.message) {
    words_.wait(to.word(index, &SyncWords::ready), block.message + 1);
  }
  words_.enqueue(stream);
  copies_.add(block.output, block.address, block.num_bytes);
  copies_.enqueue(stream);
  if (to.shares_device) count_local_copy(block.num_bytes);
  words_.write(to.peer_word(index, &SyncWords::arrived), block.end_fragment());
  words_.enqueue(stream);
  block.num_enqueued = block.num_fragments;
}

void DeviceGroupImpl::receive_fragments(Block& block, CUstream stream) {
  auto const& from = link(block.peer);
  auto const [fragment, part] = next_run(block);
  words_.wait(from.word(exchange_.channel->index, &SyncWords::arrived), block.next_fragment());
  words_.enqueue(stream);
  copies_.add(block.address + part.offset, receive_address(block, fragment), part.num_bytes);
  copies_.enqueue(stream);
  if (!is_staged(block) && !from.is_remote()) count_local_copy(part.num_bytes);
  give_credit(block, fragment, block.next_fragment());
  words_.enqueue(stream);
}

std::pair<std::uint64_t, peer_copy::BlockPart> DeviceGroupImpl::next_run(Block& block) {
  auto const& cut = layout(block.peer);
  auto const first = block.num_enqueued;
  auto const run = cut.run(block.num_fragments, block.first_fragment, first);
  block.num_enqueued += run;
  return {block.first_fragment + first, cut.part(block.num_bytes, block.num_fragments, first, run)};
}

bool DeviceGroupImpl::is_staged(Block const& block) const {
  return !exchange_.is_in_slots && block.num_bytes <= kStageBytes;
}

CUdeviceptr DeviceGroupImpl::peer_receive_address(Block const& block, std::uint64_t fragment) {
  auto const& to = link(block.peer);
  int const index = exchange_.channel->index;
  return is_staged(block) ? to.peer_stage(index, fragment) : to.peer_slot(index, fragment);
}

CUdeviceptr DeviceGroupImpl::receive_address(Block const& block, std::uint64_t fragment) {
  auto const& from = link(block.peer);
  int const index = exchange_.channel->index;
  return is_staged(block) ? from.stage(index, fragment) : from.slot(index, fragment);
}

void DeviceGroupImpl::await_room(Block const& block, std::uint64_t fragment) {
  auto const& to = link(block.peer);
  int const index = exchange_.channel->index;
  auto const num_slots = to.layout(index).num_slots;
  if (fragment < num_slots) return;
  auto const needed = fragment + 1 - num_slots;
  // If the CPU already sees the slot free, the stream need not wait.
  if (to.sync_words(index).consumed.load(std::memory_order_acquire) >= needed) return;
  words_.wait(to.word(index, &SyncWords::consumed), needed);
}

void DeviceGroupImpl::give_credit(Block const& block, std::uint64_t first, std::uint64_t end) {
  // Rounded down: the word lags behind by up to kCreditStep - 1 fragments. DeviceGroupImpl's constructor adds slots for
  // them.
  auto const consumed = end / kCreditStep * kCreditStep;
  if (exchange_.is_in_slots || consumed <= first) return;
  words_.write(link(block.peer).peer_word(exchange_.channel->index, &SyncWords::consumed), consumed);
}

void DeviceGroupImpl::copy_own(CUstream stream) {
  auto const& x = exchange_;
  if (x.own_source.empty() || x.own_source.data() == x.own_output.data()) return;
  copies_.add(peer_copy::address_of(x.own_output), peer_copy::address_of(x.own_source), x.own_source.size());
  copies_.enqueue(stream);
  count_local_copy(x.own_source.size());
}

void DeviceGroupImpl::count_local_copy(std::size_t num_bytes) {
  if (num_bytes == 0) return;
  ++stats_.local_copies;
  stats_.local_copy_bytes += num_bytes;
}

CUdeviceptr DeviceGroupImpl::own_stage() const {
  return own_stages_.address() + static_cast<std::size_t>(exchange_.channel->index) * kStageBytes;
}

void DeviceGroupImpl::after_event(CUstream stream, CUevent event) {
  context_->check(context_->call().stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
}

void DeviceGroupImpl::after_stream(CUstream stream, CUstream earlier) {
  if (stream != earlier) after_event(stream, events_->record(earlier).get());
}

void DeviceGroupImpl::take_over(CUstream& last, CUstream stream) {
  if (last != nullptr) after_stream(stream, last);
  last = stream;
}

void DeviceGroupImpl::after_bound(CUstream stream, std::optional<int> max_lag) {
  if (!max_lag) return;
  auto const& completions = exchange_.channel->completions;
  auto const back = static_cast<std::size_t>(*max_lag) + 1;
  if (back <= completions.size()) after_event(stream, completions[completions.size() - back].get());
}

CUstream DeviceGroupImpl::sender(int peer) {
  if (is_of_messages()) return stream_at(exchange_.channel->senders, static_cast<std::size_t>(peer));
  // Peers on other hosts have a stream of their own, so that a slow network does not hold up copies inside this host.
  bool const is_remote = peer != rank_ && link(peer).is_remote();
  return stream_at(exchange_.channel->senders, is_remote ? 1 : 0);
}

CUstream DeviceGroupImpl::receiver(int peer) {
  return stream_at(exchange_.channel->receivers, is_of_messages() ? static_cast<std::size_t>(peer) : 0);
}

CUstream DeviceGroupImpl::stream_at(std::vector<std::unique_ptr<peer_copy::Stream>>& streams, std::size_t at) const {
  if (streams.size() <= at) streams.resize(at + 1);
  if (streams[at] == nullptr) streams[at] = std::make_unique<peer_copy::Stream>(context_);
  return streams[at]->get();
}

}  // namespace headway::comm
