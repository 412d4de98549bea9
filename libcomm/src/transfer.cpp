// Rendezvous of payloads that do not fit the slot of their message.
//
// Idea: the sender puts only the header, an offer with address and size (the RTS of UCX and MPI). Once the receiver
// knows the output, it takes the first way that works:
//   get:       It reads the sender's memory into the output and signals done (FIN). One copy.
//   exposed:   It exposes the output and signals ready (CTS). The sender puts pieces of traits().piece_bytes there, at
//              most 64 in flight; after every 32 the receiver grants more.
//   fragments: It grants 4 fragments of 64 KiB. The sender puts fragment i into slot i % 4 of an area that stays in
//              cache. The receiver copies them out in order, and grants one more after each. Two copies.
// If both sides wait in all_to_all_v_and_wait(), payloads from `stream_bytes` on skip get.
//
// Example: 300 KiB in fragments are 5 pieces. The receiver grants 4, the sender puts 0 to 3. Piece 1 arrives first and
// is noted; then piece 0 arrives, and both are copied out. The receiver grants 5 pieces, and the sender puts piece 4
// into slot 0, which is free.
//
// Invariants: a fragment slot is written again only after it was copied out, since only pieces below begin + 4 are
//   granted.
//   Arrival is a set of piece numbers mod 256; a repeated or late tag changes only a counter.
//   Transfer numbers count per peer mod 2^16, and is_full() keeps two open transfers from sharing one.
//   Only one fragmented transfer per source is active. The sender's memory is free after `done`, or once all puts are
//   flushed.
//   Nobody writes user memory except its own process, or a peer while the output is exposed.
// Complexity: get 2 messages; the others one put per piece, with a grant per fragment or per 32 exposed pieces.
// Source: rendezvous as in MPI and UCX. Measurements and rejected forms: docs/decisions/large_blocks.md.

#include "transfer.hpp"

#include "memory_pool.hpp"
#include "small_copy.hpp"
#include "streaming_copy.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace headway::comm {

namespace {

constexpr std::size_t kFragmentBytes = LandingLayout::kTransferFragmentBytes;

constexpr int kExposedPieces = 64;  ///< Pieces of an exposed transfer in flight at a time.
constexpr std::uint64_t kPiecesPerGrant = kExposedPieces / 2;

/// Number of pieces of `piece_bytes` in a payload of `size_bytes`.
std::uint64_t pieces_of(std::size_t size_bytes, std::size_t piece_bytes) {
  return size_bytes == 0 ? 0 : (size_bytes - 1) / piece_bytes + 1;
}

/// Segment number of an exposed output. Segment 0 is the landing segment.
SegmentId exposed_segment(std::uint16_t number) { return 1u + number; }

}  // namespace

Transfers::Transfers(Wire& wire, GroupOptions const& options, PartDone on_part_done)
    : wire_(wire),
      stream_bytes_(options.stream_bytes),
      on_part_done_(std::move(on_part_done)),
      peers_(static_cast<std::size_t>(wire.size())) {}

void Transfers::prepare_offer(int peer, std::span<std::byte const> payload, MessageHeader& header) const {
  if (header.kind == MessageKind::kEager) header.kind = MessageKind::kOffer;
  header.source_address = reinterpret_cast<std::uintptr_t>(payload.data());
  header.transfer = peers_[static_cast<std::size_t>(peer)].next_number;
}

std::uint16_t Transfers::accepted(int peer, std::span<std::byte const> payload, OperationState& operation) {
  Peer& state = peer_at(peer);
  auto const number = static_cast<std::uint16_t>(state.next_number++);
  [[maybe_unused]] bool const is_new =
      state.outgoing.emplace(number, Outgoing{.payload = payload, .operation = &operation}).second;
  assert(is_new && "the caller looks at is_full()");
  ++num_pending_;
  return number;
}

void Transfers::take(int source, MessageHeader const& offer, std::span<std::byte> output, OperationState& operation,
                     bool is_attended) {
  auto const number = static_cast<std::uint16_t>(offer.transfer);
  bool const both_attend = is_attended && offer.kind == MessageKind::kAttendedOffer;
  if (wire_.pulls_from(source) && !(both_attend && output.size() >= stream_bytes_)) {
    Status const status = wire_.endpoint().get(source, offer.source_address, output);
    if (!status.ok()) return wire_.report_symptom(std::string(status.message()));
    wire_.signal(source, {.channel = kTransferDoneChannel, .operation = number});
    return finish(operation);
  }
  Incoming const incoming{.number = number, .output = output, .operation = &operation};
  ++num_pending_;
  PeerTraits const& traits = wire_.traits(source);
  bool const is_worth_it = output.size() >= traits.worth_exposing_bytes || MemoryPool::shared().find(output) != nullptr;
  if (traits.can_put_exposed && is_worth_it && wire_.endpoint().expose(source, exposed_segment(number), output)) {
    peer_at(source).exposed.emplace(number, incoming);
    ++num_exposed_;
    return wire_.signal(source, {.channel = kTransferReadyChannel, .operation = number});
  }
  auto& queue = peer_at(source).fragmented;
  queue.push_back(incoming);
  if (queue.size() == 1) grant(source, queue.front(), LandingLayout::kTransferFragments);
}

void Transfers::arrived(int source, Tag tag) {
  Peer& state = peer_at(source);
  if (tag.channel == kTransferDataChannel) {
    auto const exposed = state.exposed.find(tag.operation);
    if (exposed == state.exposed.end()) return fragment_arrived(source, tag);
    return exposed_piece_arrived(source, exposed->second, tag);
  }
  auto const outgoing = state.outgoing.find(tag.operation);
  if (outgoing == state.outgoing.end()) {
    ++wire_.peer_stats(source).repeated_fragments;
    return;
  }
  Outgoing& transfer = outgoing->second;
  if (tag.channel == kTransferDoneChannel) {
    wire_.peer_stats(source).bytes_sent += transfer.payload.size();
    OperationState& operation = *transfer.operation;
    state.outgoing.erase(outgoing);
    --num_pending_;
    return finish(operation);
  }
  if (transfer.granted == 0) state.moving.push_back(tag.operation);
  if (tag.channel == kTransferReadyChannel) {
    transfer.is_exposed = true;
    transfer.granted = kExposedPieces;
  } else {
    auto const more = static_cast<std::uint8_t>(tag.fragment - static_cast<std::uint8_t>(transfer.granted));
    if (more < 128) transfer.granted += more;  // Larger differences are old grants that arrived late.
  }
}

void Transfers::push(int peer, std::uint16_t number, Outgoing& transfer) {
  auto const put = [&](Destination const& destination, std::span<std::byte const> payload, std::uint8_t fragment) {
    Tag const tag{.channel = kTransferDataChannel, .operation = number, .fragment = fragment};
    if (!wire_.endpoint().put(destination, {}, payload, tag).ok()) return false;
    wire_.mark_put(peer, payload.size());
    return true;
  };
  std::size_t const piece_bytes = transfer.is_exposed ? wire_.traits(peer).piece_bytes : kFragmentBytes;
  std::uint64_t const total = pieces_of(transfer.payload.size(), piece_bytes);
  while (transfer.sent < std::min(transfer.granted, total)) {
    std::size_t const begin = transfer.sent * piece_bytes;
    auto const piece = transfer.payload.subspan(begin, std::min(piece_bytes, transfer.payload.size() - begin));
    Destination const destination =
        transfer.is_exposed
            ? Destination{.peer = peer, .segment = exposed_segment(number), .offset = begin}
            : Destination{.peer = peer, .offset = wire_.layout().transfer_slot(wire_.rank(), transfer.sent)};
    if (!put(destination, piece, static_cast<std::uint8_t>(transfer.sent))) return;
    ++transfer.sent;
    transfer.last_put = wire_.endpoint().put_count(peer);
  }
  transfer.all_put = transfer.sent == total;
}

int Transfers::Pieces::note(std::uint8_t fragment, int num_under_way) {
  int const ahead = static_cast<std::uint8_t>(fragment - static_cast<std::uint8_t>(begin));
  if (ahead >= num_under_way || (bits >> ahead & 1u) != 0) return -1;
  bits |= std::uint64_t{1} << ahead;
  return ahead;
}

bool Transfers::Pieces::take() {
  if ((bits & 1u) == 0) return false;
  bits >>= 1u;
  ++begin;
  return true;
}

void Transfers::exposed_piece_arrived(int source, Incoming& transfer, Tag tag) {
  if (transfer.pieces.note(tag.fragment, kExposedPieces) < 0) {
    ++wire_.peer_stats(source).repeated_fragments;
    return;
  }
  std::uint64_t const total = pieces_of(transfer.output.size(), wire_.traits(source).piece_bytes);
  while (transfer.pieces.take()) {
    if (transfer.pieces.begin % kPiecesPerGrant == 0) grant(source, transfer, kExposedPieces);
  }
  if (transfer.pieces.begin < total) return;
  wire_.endpoint().withdraw(source, exposed_segment(tag.operation));
  OperationState& operation = *transfer.operation;
  peer_at(source).exposed.erase(tag.operation);
  --num_exposed_;
  --num_pending_;
  finish(operation);
}

void Transfers::fragment_arrived(int source, Tag tag) {
  auto& queue = peer_at(source).fragmented;
  auto const repeated = [&] { ++wire_.peer_stats(source).repeated_fragments; };
  if (queue.empty() || static_cast<std::uint16_t>(queue.front().number) != tag.operation) return repeated();
  Incoming& transfer = queue.front();
  int const ahead = transfer.pieces.note(tag.fragment, LandingLayout::kTransferFragments);
  if (ahead < 0) return repeated();
  if (wire_.plants(Mutant::kSharedWord)) transfer.pieces.bits |= (std::uint64_t{1} << ahead) - 1;
  std::uint64_t const total = pieces_of(transfer.output.size(), kFragmentBytes);
  for (std::uint64_t piece = transfer.pieces.begin; transfer.pieces.take(); ++piece) {
    std::size_t const begin = piece * kFragmentBytes;
    std::size_t const size = std::min(kFragmentBytes, transfer.output.size() - begin);
    std::uint64_t const offset = wire_.layout().transfer_slot(source, piece) + kHeaderBytes;
    bool const is_streamed = transfer.output.size() >= stream_bytes_;
    (is_streamed ? copy_streaming : copy_bytes)(transfer.output.data() + begin, wire_.landed(offset), size);
    if (piece + 1 < total) grant(source, transfer, LandingLayout::kTransferFragments);
  }
  if (transfer.pieces.begin < total) return;
  OperationState& operation = *transfer.operation;
  queue.pop_front();
  --num_pending_;
  if (!queue.empty()) grant(source, queue.front(), LandingLayout::kTransferFragments);
  finish(operation);
}

void Transfers::grant(int source, Incoming const& transfer, int num_under_way) {
  auto const granted = transfer.pieces.begin + static_cast<std::uint64_t>(num_under_way);
  wire_.signal(source, {.channel = kTransferGrantChannel,
                        .operation = static_cast<std::uint16_t>(transfer.number),
                        .fragment = static_cast<std::uint8_t>(granted)});
}

void Transfers::progress() {
  for (int peer = 0; peer < wire_.size(); ++peer) {
    Peer& state = peer_at(peer);
    std::erase_if(state.moving, [&](std::uint16_t number) {
      auto const found = state.outgoing.find(number);
      if (found == state.outgoing.end()) return true;  // Forgotten, or already ended by a late signal.
      Outgoing& transfer = found->second;
      if (!transfer.all_put) push(peer, number, transfer);
      if (!transfer.all_put || wire_.endpoint().flushed(peer) < transfer.last_put) return false;
      OperationState& operation = *transfer.operation;
      state.outgoing.erase(found);
      --num_pending_;
      finish(operation);
      return true;
    });
  }
}

void Transfers::cancel() {
  for (int source = 0; source < wire_.size(); ++source) {
    Peer& state = peer_at(source);
    for (auto const& [number, incoming] : state.exposed) wire_.endpoint().withdraw(source, exposed_segment(number));
    state.exposed.clear();
    state.outgoing.clear();
    state.moving.clear();
    state.fragmented.clear();
  }
  num_pending_ = 0;
  num_exposed_ = 0;
}

bool Transfers::busy_with(int peer) const {
  Peer const& state = peers_[static_cast<std::size_t>(peer)];
  return !state.outgoing.empty() || !state.exposed.empty() || !state.fragmented.empty();
}

std::string Transfers::describe_missing(OperationState const& operation) const {
  std::string text;
  auto const lacks = [&](Incoming const& each, std::size_t source) {
    if (each.operation != &operation) return;
    text += (text.empty() ? "lacks " : " and lacks ") + std::to_string(each.output.size()) + " bytes from rank " +
            std::to_string(source);
  };
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (auto const& [number, incoming] : peers_[peer].exposed) lacks(incoming, peer);
    for (auto const& incoming : peers_[peer].fragmented) lacks(incoming, peer);
    for (auto const& [number, outgoing] : peers_[peer].outgoing) {
      if (outgoing.operation != &operation) continue;
      text += std::string(text.empty() ? "" : " and ") + "waits for rank " + std::to_string(peer) + " to take " +
              std::to_string(outgoing.payload.size()) + " bytes";
    }
  }
  return text;
}

bool Transfers::takes_from(int peer, OperationState const& operation) const {
  Peer const& state = peers_[static_cast<std::size_t>(peer)];
  return std::ranges::any_of(state.exposed, [&](auto const& each) { return each.second.operation == &operation; }) ||
         std::ranges::any_of(state.fragmented, [&](auto const& each) { return each.operation == &operation; });
}

bool Transfers::gives_to(int peer, OperationState const& operation) const {
  auto const& outgoing = peers_[static_cast<std::size_t>(peer)].outgoing;
  return std::ranges::any_of(outgoing, [&](auto const& each) { return each.second.operation == &operation; });
}

void Transfers::finish(OperationState& operation) {
  operation.part_done();
  on_part_done_(operation);
}

}  // namespace headway::comm
