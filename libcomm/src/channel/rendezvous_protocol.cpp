// SPDX-License-Identifier: Apache-2.0

// Rendezvous of payloads that do not fit the slot of their message.
//
// Idea: the sender puts only the header, an RTS (ready to send) with address and size. Once the receiver knows
// the output, it takes the first way that works:
//   get:       It reads the sender's memory into the output and signals done (FIN). One copy.
//   window:    It opens a window on the output and signals ready (CTS). The sender puts pieces of traits().piece_bytes
//              there, at most 64 in flight; after every 32 the receiver grants more.
//   fragments: It grants 4 fragments of 64 KiB. The sender puts fragment i into slot i % 4 of an area that stays in
//              cache. The receiver copies them out in order, and grants one more after each. Two copies.
// If both sides wait in all_to_all_v_and_wait(), payloads from `stream_bytes` on skip get.
//
// Example: 300 KiB in fragments are 5 pieces. The receiver grants 4, the sender puts 0 to 3. Piece 1 arrives first and
// is marked; then piece 0 arrives, and both are copied out. The receiver grants 5 pieces, and the sender puts piece 4
// into slot 0, which is free.
//
// Invariants: a fragment slot is written again only after it was copied out, since only pieces below begin + 4 are
//   granted (begin: the first piece that is missing).
//   Arrival is a set of piece numbers mod 256; a repeated or late tag changes only a counter.
//   Transfer numbers count per peer mod 2^16, and is_full() keeps two open transfers from sharing one.
//   Only one fragmented transfer per source is active. The sender's memory is free after the signal done, or once all
//   puts are flushed.
//   Nobody writes user memory except its own process, or a peer while the output is a window.
// Complexity: get 2 messages; the others one put per piece, with a grant per fragment or per 32 pieces in a window.
// Source: rendezvous as in MPI and UCX. Measurements and rejected forms: docs/design/large_blocks.md.

#include "channel/rendezvous_protocol.hpp"

#include "system/memory_pool.hpp"
#include "system/small_copy.hpp"
#include "system/streaming_copy.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace headway::comm {

namespace {

constexpr std::size_t kFragmentBytes = ReceiveLayout::kRendezvousFragmentBytes;

constexpr int kWindowPieces = 64;  ///< Pieces in flight into one window at a time.
constexpr std::uint64_t kPiecesPerGrant = kWindowPieces / 2;

/// Number of pieces of `piece_bytes` in a payload of `size_bytes`.
std::uint64_t pieces_of(std::size_t size_bytes, std::size_t piece_bytes) {
  return size_bytes == 0 ? 0 : (size_bytes - 1) / piece_bytes + 1;
}

/// Number of the window on an output. Window 0 is the receive buffer.
WindowId window_of(std::uint16_t id) { return 1u + id; }

}  // namespace

RendezvousProtocol::RendezvousProtocol(ChannelContext& context, GroupOptions const& options, PartDone on_part_done)
    : context_(context),
      stream_bytes_(options.stream_bytes),
      on_part_done_(std::move(on_part_done)),
      peers_(static_cast<std::size_t>(context.size())) {}

void RendezvousProtocol::prepare_rts(int peer, std::span<std::byte const> payload, MessageHeader& header) const {
  if (header.kind == MessageKind::kEager) header.kind = MessageKind::kRts;
  header.source_address = reinterpret_cast<std::uintptr_t>(payload.data());
  header.transfer = peers_[static_cast<std::size_t>(peer)].next_id;
}

std::uint16_t RendezvousProtocol::rts_sent(int peer, std::span<std::byte const> payload, OperationState& operation) {
  Peer& state = peer_at(peer);
  auto const id = static_cast<std::uint16_t>(state.next_id++);
  [[maybe_unused]] bool const is_new =
      state.outgoing.emplace(id, Outgoing{.payload = payload, .operation = &operation}).second;
  assert(is_new && "the caller looks at is_full()");
  ++num_pending_;
  return id;
}

void RendezvousProtocol::receive(int source, MessageHeader const& rts, std::span<std::byte> output,
                                 OperationState& operation, bool is_blocking) {
  auto const id = static_cast<std::uint16_t>(rts.transfer);
  bool const both_block = is_blocking && rts.kind == MessageKind::kBlockingRts;
  if (context_.gets_from(source) && !(both_block && output.size() >= stream_bytes_)) {
    Status const status = context_.endpoint().get(source, rts.source_address, output);
    if (!status.ok()) return context_.report_symptom(std::string(status.message()));
    context_.signal(source, {.channel = kRendezvousDoneChannel, .operation = id});
    return finish(operation);
  }
  Incoming const incoming{.id = id, .output = output, .operation = &operation};
  ++num_pending_;
  PeerTraits const& traits = context_.traits(source);
  // Memory of allocate() stays registered after its first use, so a window on it is cheap even if it is small.
  bool const is_worth_it = output.size() >= traits.min_window_bytes || MemoryPool::shared().find(output) != nullptr;
  if (traits.can_put_to_window && is_worth_it && context_.endpoint().open_window(source, window_of(id), output)) {
    peer_at(source).windows.emplace(id, incoming);
    ++num_windows_;
    return context_.signal(source, {.channel = kRendezvousReadyChannel, .operation = id});
  }
  auto& queue = peer_at(source).fragmented;
  queue.push_back(incoming);
  if (queue.size() == 1) grant(source, queue.front(), ReceiveLayout::kRendezvousFragments);
}

void RendezvousProtocol::arrived(int source, Tag tag) {
  Peer& state = peer_at(source);
  if (tag.channel == kRendezvousDataChannel) {
    auto const window = state.windows.find(tag.operation);
    if (window == state.windows.end()) return fragment_arrived(source, tag);
    return window_piece_arrived(source, window->second, tag);
  }
  auto const outgoing = state.outgoing.find(tag.operation);
  if (outgoing == state.outgoing.end()) {
    ++context_.peer_stats(source).repeated_fragments;
    return;
  }
  Outgoing& transfer = outgoing->second;
  if (tag.channel == kRendezvousDoneChannel) {
    context_.peer_stats(source).bytes_sent += transfer.payload.size();
    OperationState& operation = *transfer.operation;
    state.outgoing.erase(outgoing);
    --num_pending_;
    return finish(operation);
  }
  if (transfer.granted == 0) state.moving.push_back(tag.operation);
  if (tag.channel == kRendezvousReadyChannel) {
    transfer.has_window = true;
    transfer.granted = std::max<std::uint64_t>(transfer.granted, kWindowPieces);  // A late signal takes nothing back.
  } else {
    auto const more = static_cast<std::uint8_t>(tag.fragment - static_cast<std::uint8_t>(transfer.granted));
    if (more < 128) transfer.granted += more;  // Larger differences are old grants that arrived late.
  }
}

void RendezvousProtocol::push(int peer, std::uint16_t id, Outgoing& transfer) {
  auto const put = [&](Destination const& destination, std::span<std::byte const> payload, std::uint8_t fragment) {
    Tag const tag{.channel = kRendezvousDataChannel, .operation = id, .fragment = fragment};
    if (!context_.endpoint().put(destination, {}, payload, tag).ok()) return false;
    context_.mark_put(peer, payload.size());
    return true;
  };
  std::size_t const piece_bytes = transfer.has_window ? context_.traits(peer).piece_bytes : kFragmentBytes;
  std::uint64_t const total = pieces_of(transfer.payload.size(), piece_bytes);
  while (transfer.sent < std::min(transfer.granted, total)) {
    std::size_t const begin = transfer.sent * piece_bytes;
    auto const piece = transfer.payload.subspan(begin, std::min(piece_bytes, transfer.payload.size() - begin));
    Destination const destination =
        transfer.has_window
            ? Destination{.peer = peer, .window = window_of(id), .offset = begin}
            : Destination{.peer = peer, .offset = context_.layout().rendezvous_slot(context_.rank(), transfer.sent)};
    if (!put(destination, piece, static_cast<std::uint8_t>(transfer.sent))) return;
    ++transfer.sent;
    transfer.last_put = context_.endpoint().put_count(peer);
  }
  transfer.all_put = transfer.sent == total;
}

int RendezvousProtocol::Pieces::mark(std::uint8_t fragment, int num_under_way, ProtocolRules const& rules) {
  int const ahead = static_cast<std::uint8_t>(fragment - static_cast<std::uint8_t>(begin));
  if (ahead >= num_under_way || (bits >> ahead & 1u) != 0) return -1;
  bits |= rules.pieces_announced(ahead);  // This piece alone; tests plant rules that are wrong.
  return ahead;
}

bool RendezvousProtocol::Pieces::take() {
  if ((bits & 1u) == 0) return false;
  bits >>= 1u;
  ++begin;
  return true;
}

void RendezvousProtocol::window_piece_arrived(int source, Incoming& transfer, Tag tag) {
  if (transfer.pieces.mark(tag.fragment, kWindowPieces, context_.rules()) < 0) {
    ++context_.peer_stats(source).repeated_fragments;
    return;
  }
  std::uint64_t const total = pieces_of(transfer.output.size(), context_.traits(source).piece_bytes);
  while (transfer.pieces.take()) {
    if (transfer.pieces.begin % kPiecesPerGrant == 0) grant(source, transfer, kWindowPieces);
  }
  if (transfer.pieces.begin < total) return;
  context_.endpoint().close_window(source, window_of(tag.operation));
  OperationState& operation = *transfer.operation;
  peer_at(source).windows.erase(tag.operation);
  --num_windows_;
  --num_pending_;
  finish(operation);
}

void RendezvousProtocol::fragment_arrived(int source, Tag tag) {
  auto& queue = peer_at(source).fragmented;
  auto const repeated = [&] { ++context_.peer_stats(source).repeated_fragments; };
  if (queue.empty() || static_cast<std::uint16_t>(queue.front().id) != tag.operation) return repeated();
  Incoming& transfer = queue.front();
  if (transfer.pieces.mark(tag.fragment, ReceiveLayout::kRendezvousFragments, context_.rules()) < 0) return repeated();
  std::uint64_t const total = pieces_of(transfer.output.size(), kFragmentBytes);
  for (std::uint64_t piece = transfer.pieces.begin; transfer.pieces.take(); ++piece) {
    std::size_t const begin = piece * kFragmentBytes;
    std::size_t const size = std::min(kFragmentBytes, transfer.output.size() - begin);
    std::uint64_t const offset = context_.layout().rendezvous_slot(source, piece) + kHeaderBytes;
    bool const is_streamed = transfer.output.size() >= stream_bytes_;
    (is_streamed ? copy_streaming : copy_bytes)(transfer.output.data() + begin, context_.received_at(offset), size);
    if (piece + 1 < total) grant(source, transfer, ReceiveLayout::kRendezvousFragments);
  }
  if (transfer.pieces.begin < total) return;
  OperationState& operation = *transfer.operation;
  queue.pop_front();
  --num_pending_;
  if (!queue.empty()) grant(source, queue.front(), ReceiveLayout::kRendezvousFragments);
  finish(operation);
}

void RendezvousProtocol::grant(int source, Incoming const& transfer, int num_under_way) {
  auto const granted = transfer.pieces.begin + static_cast<std::uint64_t>(num_under_way);
  context_.signal(source, {.channel = kRendezvousGrantChannel,
                           .operation = static_cast<std::uint16_t>(transfer.id),
                           .fragment = static_cast<std::uint8_t>(granted)});
}

void RendezvousProtocol::progress() {
  for (int peer = 0; peer < context_.size(); ++peer) {
    Peer& state = peer_at(peer);
    std::erase_if(state.moving, [&](std::uint16_t id) {
      auto const found = state.outgoing.find(id);
      if (found == state.outgoing.end()) return true;  // Forgotten, or already ended by a late signal.
      Outgoing& transfer = found->second;
      if (!transfer.all_put) push(peer, id, transfer);
      if (!transfer.all_put || context_.endpoint().flushed(peer) < transfer.last_put) return false;
      OperationState& operation = *transfer.operation;
      state.outgoing.erase(found);
      --num_pending_;
      finish(operation);
      return true;
    });
  }
}

void RendezvousProtocol::cancel() {
  for (int source = 0; source < context_.size(); ++source) {
    Peer& state = peer_at(source);
    for (auto const& [id, incoming] : state.windows) context_.endpoint().close_window(source, window_of(id));
    state.windows.clear();
    state.outgoing.clear();
    state.moving.clear();
    state.fragmented.clear();
  }
  num_pending_ = 0;
  num_windows_ = 0;
}

bool RendezvousProtocol::busy_with(int peer) const {
  Peer const& state = peers_[static_cast<std::size_t>(peer)];
  return !state.outgoing.empty() || !state.windows.empty() || !state.fragmented.empty();
}

std::string RendezvousProtocol::describe_missing(OperationState const& operation) const {
  std::string text;
  auto const lacks = [&](Incoming const& each, std::size_t source) {
    if (each.operation != &operation) return;
    text += (text.empty() ? "lacks " : " and lacks ") + std::to_string(each.output.size()) + " bytes from rank " +
            std::to_string(source);
  };
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (auto const& [id, incoming] : peers_[peer].windows) lacks(incoming, peer);
    for (auto const& incoming : peers_[peer].fragmented) lacks(incoming, peer);
    for (auto const& [id, outgoing] : peers_[peer].outgoing) {
      if (outgoing.operation != &operation) continue;
      text += std::string(text.empty() ? "" : " and ") + "waits for rank " + std::to_string(peer) + " to take " +
              std::to_string(outgoing.payload.size()) + " bytes";
    }
  }
  return text;
}

bool RendezvousProtocol::receives_from(int peer, OperationState const& operation) const {
  Peer const& state = peers_[static_cast<std::size_t>(peer)];
  return std::ranges::any_of(state.windows, [&](auto const& each) { return each.second.operation == &operation; }) ||
         std::ranges::any_of(state.fragmented, [&](auto const& each) { return each.operation == &operation; });
}

bool RendezvousProtocol::sends_to(int peer, OperationState const& operation) const {
  auto const& outgoing = peers_[static_cast<std::size_t>(peer)].outgoing;
  return std::ranges::any_of(outgoing, [&](auto const& each) { return each.second.operation == &operation; });
}

void RendezvousProtocol::finish(OperationState& operation) {
  operation.part_done();
  on_part_done_(operation);
}

}  // namespace headway::comm
