// Enqueues an operation of a device group: on one stream (two with a bound) if it is small, else on one stream per
// peer.

#include "device_group_impl.hpp"

#include <algorithm>

namespace headway::comm {

namespace {

/// Up to this many bytes above the stage size, one stream is faster: streams wait longer for each other than such
/// blocks do.
constexpr std::size_t kOneStreamBytes = std::size_t{1} << 20;

}  // namespace

using nvlink::Board;
using nvlink::kCreditStep;
using nvlink::kStageBytes;
using nvlink::Way;

void DeviceGroupImpl::enqueue(CUstream user, std::optional<int> max_lag, DeviceOperationImpl& operation) {
  auto const start = events_->record(user);
  if (fits_one_stream()) {
    enqueue_on_one_stream(start.get(), max_lag, operation);
  } else {
    enqueue_on_lanes(start.get(), max_lag, operation);
  }
}

void DeviceGroupImpl::enqueue_on_one_stream(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation) {
  CUstream const receive = receiver(rank_);
  // If max_lag is 0, nothing is sent before all earlier data was received, so one stream can do both.
  CUstream const send = max_lag == 0 ? receive : lane(rank_);
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
  if (is_own_staged) copies_.add(own_stage(), nvlink::address_of(exchange_.own_source), exchange_.own_source.size());
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
      return block.num_fragments == 1 && block.way == Way::kSlots && above_stages <= kOneStreamBytes;
    });
  };
  return !is_of_messages() && fit(exchange_.sends) && fit(exchange_.receives);
}

void DeviceGroupImpl::add_whole_sends(CUstream stream) {
  for (auto const& block : exchange_.sends) await_room(block, block.first_fragment);
  words_.enqueue(stream);
  for (auto const& block : exchange_.sends) {
    copies_.add(landing_at_peer(block, block.first_fragment), block.address, block.num_bytes);
    if (!is_staged(block) && link(block.peer).shares_device) count_local_copy(block.num_bytes);
    words_.write(link(block.peer).peer_word(exchange_.channel->index, &Board::arrived), block.first_fragment + 1);
  }
}

void DeviceGroupImpl::add_whole_receives() {
  for (auto const& block : exchange_.receives) {
    words_.wait(link(block.peer).word(exchange_.channel->index, &Board::arrived), block.first_fragment + 1);
    if (exchange_.is_in_slots) continue;
    copies_.add(block.address, landing(block, block.first_fragment), block.num_bytes);
    if (!is_staged(block) && !link(block.peer).is_remote()) count_local_copy(block.num_bytes);
  }
  if (exchange_.own_output.size() > kStageBytes) return;
  copies_.add(nvlink::address_of(exchange_.own_output), own_stage(), exchange_.own_output.size());
}

void DeviceGroupImpl::enqueue_on_lanes(CUevent start, std::optional<int> max_lag, DeviceOperationImpl& operation) {
  auto& x = exchange_;
  open_outputs(start, max_lag);
  for (auto& block : x.sends) {
    CUstream const stream = lane(block.peer);
    after_event(stream, start);
    after_bound(stream, max_lag);
    take_over(state(block.peer).sender, stream);
    if (block.way == Way::kDirectly) send_directly(block, stream);
  }
  in_turns(x.sends, [this](Block& block) { send_fragments(block, lane(block.peer)); });
  bool const is_only_sent = is_of_messages() && x.receives.empty();
  CUstream const last =
      is_only_sent ? lane(x.sends.front().peer) : receiver(x.receives.empty() ? rank_ : x.receives.front().peer);
  if (!is_only_sent) after_event(last, start);
  copy_own(last);
  // Blocks in DeviceSlots, and blocks written directly into outputs, need no copy after they have arrived.
  auto const is_cut = [&](Block const& block) { return !x.is_in_slots && block.way == Way::kSlots; };
  for (auto& block : x.receives) {
    take_over(state(block.peer).receiver, last);
    if (!is_cut(block)) block.num_enqueued = block.num_fragments;
  }
  in_turns(x.receives, [this, last](Block& block) { receive_fragments(block, last); });
  for (auto const& block : x.receives) {
    if (is_cut(block)) continue;
    words_.wait(link(block.peer).word(x.channel->index, &Board::arrived), block.end_fragment());
    give_credit(block, block.first_fragment, block.end_fragment());
  }
  words_.enqueue(last);
  for (auto const& block : x.sends) after_stream(last, lane(block.peer));
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
    if (block.way != Way::kDirectly) continue;
    words_.write(link(block.peer).peer_word(channel.index, &Board::ready), block.message + 1);
  }
  if (words_.empty()) return;
  if (channel.credits == nullptr) channel.credits = std::make_unique<nvlink::Stream>(context_);
  after_event(channel.credits->get(), start);
  after_bound(channel.credits->get(), max_lag);
  words_.enqueue(channel.credits->get());
}

void DeviceGroupImpl::send_fragments(Block& block, CUstream stream) {
  auto const& to = link(block.peer);
  auto const [fragment, part] = next_run(block);
  await_room(block, block.next_fragment() - 1);
  words_.enqueue(stream);
  copies_.add(landing_at_peer(block, fragment), block.address + part.offset, part.num_bytes);
  copies_.enqueue(stream);
  if (!is_staged(block) && to.shares_device) count_local_copy(part.num_bytes);
  words_.write(to.peer_word(exchange_.channel->index, &Board::arrived), block.next_fragment());
  words_.enqueue(stream);
}

void DeviceGroupImpl::send_directly(Block& block, CUstream stream) {
  auto const& to = link(block.peer);
  int const index = exchange_.channel->index;
  if (to.board(index).ready.load(std::memory_order_acquire) <= block.message) {
    words_.wait(to.word(index, &Board::ready), block.message + 1);
  }
  words_.enqueue(stream);
  copies_.add(block.output, block.address, block.num_bytes);
  copies_.enqueue(stream);
  if (to.shares_device) count_local_copy(block.num_bytes);
  words_.write(to.peer_word(index, &Board::arrived), block.end_fragment());
  words_.enqueue(stream);
  block.num_enqueued = block.num_fragments;
}

void DeviceGroupImpl::receive_fragments(Block& block, CUstream stream) {
  auto const& from = link(block.peer);
  auto const [fragment, part] = next_run(block);
  words_.wait(from.word(exchange_.channel->index, &Board::arrived), block.next_fragment());
  words_.enqueue(stream);
  copies_.add(block.address + part.offset, landing(block, fragment), part.num_bytes);
  copies_.enqueue(stream);
  if (!is_staged(block) && !from.is_remote()) count_local_copy(part.num_bytes);
  give_credit(block, fragment, block.next_fragment());
  words_.enqueue(stream);
}

std::pair<std::uint64_t, nvlink::BlockPart> DeviceGroupImpl::next_run(Block& block) {
  auto const& cut = layout(block.peer);
  auto const first = block.num_enqueued;
  auto const run = cut.run(block.num_fragments, block.first_fragment, first);
  block.num_enqueued += run;
  return {block.first_fragment + first, cut.part(block.num_bytes, block.num_fragments, first, run)};
}

bool DeviceGroupImpl::is_staged(Block const& block) const {
  return !exchange_.is_in_slots && block.num_bytes <= kStageBytes;
}

CUdeviceptr DeviceGroupImpl::landing_at_peer(Block const& block, std::uint64_t fragment) {
  auto const& to = link(block.peer);
  int const index = exchange_.channel->index;
  return is_staged(block) ? to.peer_stage(index, fragment) : to.peer_slot(index, fragment);
}

CUdeviceptr DeviceGroupImpl::landing(Block const& block, std::uint64_t fragment) {
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
  if (to.board(index).consumed.load(std::memory_order_acquire) >= needed) return;
  words_.wait(to.word(index, &Board::consumed), needed);
}

void DeviceGroupImpl::give_credit(Block const& block, std::uint64_t first, std::uint64_t end) {
  auto const consumed = end / kCreditStep * kCreditStep;
  if (exchange_.is_in_slots || consumed <= first) return;
  words_.write(link(block.peer).peer_word(exchange_.channel->index, &Board::consumed), consumed);
}

void DeviceGroupImpl::copy_own(CUstream stream) {
  auto const& x = exchange_;
  if (x.own_source.empty() || x.own_source.data() == x.own_output.data()) return;
  copies_.add(nvlink::address_of(x.own_output), nvlink::address_of(x.own_source), x.own_source.size());
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

CUstream DeviceGroupImpl::lane(int peer) {
  // All peers on other hosts share one stream: each stream that waits for room would take a hardware queue. Both sides
  // take blocks in turns, run by run, and earlier runs free the room for a later one. So no side waits for a later run.
  bool const is_shared = !is_of_messages() && peer != rank_ && link(peer).is_remote();
  return stream_at(exchange_.channel->lanes, static_cast<std::size_t>(is_shared ? size_ : peer));
}

CUstream DeviceGroupImpl::receiver(int peer) {
  return stream_at(exchange_.channel->receivers, is_of_messages() ? static_cast<std::size_t>(peer) : 0);
}

CUstream DeviceGroupImpl::stream_at(std::vector<std::unique_ptr<nvlink::Stream>>& streams, std::size_t at) const {
  if (streams.size() <= at) streams.resize(at + 1);
  if (streams[at] == nullptr) streams[at] = std::make_unique<nvlink::Stream>(context_);
  return streams[at]->get();
}

}  // namespace headway::comm
