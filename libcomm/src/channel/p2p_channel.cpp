// SPDX-License-Identifier: Apache-2.0

// Point-to-point messages with a consumed count per pair of ranks; sends, receives and all collectives but all-to-alls.
//
// Idea: message i from s to r lands in slot i % 16 (kP2PSlots) of r's slots for s, in any order. r consumes messages
// in order: it copies each to a posted receive or, if none matches, to the heap. s puts message i only if it knows that
// r consumed message i - 16. r reports its count in the header of each message to s, and after every 8 by a signal.
//
// Example: s has sent messages 0 to 15, and message 16 waits. r consumes 0 to 7 and signals 8: s may send up to 23. An
// older count, 3, arrives late: it is below 8 and ignored.
//
// Invariants: s believes a count only if it is above the one it knows and at most the number it has sent. So a late
//   count makes it wait, and never frees a slot in use.
//   `arrived_mask` is the set of arrivals among the next 16 messages; a repeated tag is only counted.
//   Payloads above message_slot_bytes go by rendezvous (rendezvous_protocol.cpp); the RTS takes a slot.
//   Unexpected messages take at most unexpected_limit_bytes, or one message. Each new receive resumes stalled sources.
//   A message of a collective carries its number, kind and root. They must match this rank's last 256 collectives.
// Complexity: one put per message, plus at most one signal per 8 messages. A receive searches the unexpected messages
//   linearly, and a message the posted receives.
// Source: tests/model/p2p_channel.pml (model), docs/design/point_to_point_messages.md (why a consumed count, and why
// collectives are flat: no rank forwards).

#include "channel/p2p_channel.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace headway::comm {

namespace {

constexpr auto kSlots = static_cast<std::uint64_t>(ReceiveLayout::kP2PSlots);

/// Does a posted receive take a message of `source` with `match`?
bool takes(P2PPart const& posted, int source, Match match) {
  return (posted.peer < 0 || posted.peer == source) && posted.match == match;
}

/// Names a message in errors.
std::string who(Match match, Verb verb) {
  return match.is_collective() ? std::string(verb_name(verb)) + " as collective " + std::to_string(match.sequence())
                               : "message with match " + std::to_string(match.value);
}

}  // namespace

P2PChannel::P2PChannel(ChannelContext& context, RendezvousProtocol& rendezvous, std::size_t unexpected_limit_bytes,
                       PartDone on_part_done)
    : context_(context),
      rendezvous_(rendezvous),
      unexpected_limit_bytes_(unexpected_limit_bytes),
      on_part_done_(std::move(on_part_done)),
      peers_(static_cast<std::size_t>(context.size())) {}

std::uint64_t P2PChannel::begin_collective(Verb verb, int root) {
  std::uint64_t const seq = num_collectives_++;
  recent_collectives_[seq % recent_collectives_.size()] = {verb, root};
  for (int source = 0; source < context_.size(); ++source) {
    for (auto const& message : peer_at(source).unexpected) {
      if (Match{message.header.match}.sequence() == seq) check_collective(source, message.header);
    }
  }
  return seq;
}

void P2PChannel::check_collective(int source, MessageHeader const& header) {
  Match const match{header.match};
  if (!match.is_collective() || match.sequence() >= num_collectives_ ||
      match.sequence() + recent_collectives_.size() < num_collectives_) {
    return;
  }
  auto const& own = recent_collectives_[match.sequence() % recent_collectives_.size()];
  if (own.verb == header.verb && own.root == match.root()) return;
  auto const describe = [](Verb verb, int root) {
    return std::string(verb_name(verb)) + " (root " + std::to_string(root) + ")";
  };
  context_.report_error("ranks disagree on collective " + std::to_string(match.sequence()) + ": rank " +
                        std::to_string(source) + " runs " + describe(header.verb, match.root()) + " and rank " +
                        std::to_string(context_.rank()) + " runs " + describe(own.verb, own.root));
}

void P2PChannel::send(P2PPart part, std::span<std::byte const> payload) {
  int const peer = part.peer;
  part.operation->add_parts(1);
  peer_at(peer).queue.push_back({std::move(part), payload});
  push(peer);
}

void P2PChannel::push(int peer) {
  auto& queue = peer_at(peer).queue;
  while (!queue.empty() && put_front(peer, queue.front())) queue.pop_front();
}

bool P2PChannel::put_front(int peer, Outgoing const& outgoing) {
  Peer& state = peer_at(peer);
  if (state.num_sent >= state.num_consumed_by_peer + kSlots) return false;
  P2PPart const& part = outgoing.part;
  MessageHeader header{.size_bytes = outgoing.payload.size(),
                       .operation = static_cast<std::uint32_t>(state.num_sent),
                       .data_type = part.data_type,
                       .verb = part.operation->verb(),
                       .match = part.match.value,
                       .consumed = static_cast<std::uint32_t>(state.num_consumed)};
  Tag const tag{.channel = kP2PChannel, .operation = static_cast<std::uint16_t>(state.num_sent)};
  std::uint64_t const slot = context_.layout().p2p_slot(context_.rank(), state.num_sent);
  bool const is_eager = outgoing.payload.size() <= context_.layout().p2p_slot_bytes();
  if (!is_eager && rendezvous_.is_full(peer)) return false;
  if (!is_eager) rendezvous_.prepare_rts(peer, outgoing.payload, header);
  if (!context_.put(peer, slot, header, is_eager ? outgoing.payload : std::span<std::byte const>(), tag)) return false;
  ++state.num_sent;
  state.num_reported = state.num_consumed;
  if (!is_eager) {
    rendezvous_.rts_sent(peer, outgoing.payload, *part.operation);
    return true;
  }
  state.unflushed.push_back({part.operation, context_.endpoint().put_count(peer)});
  release_flushed(peer);
  return true;
}

void P2PChannel::release_flushed(int peer) {
  auto& unflushed = peer_at(peer).unflushed;
  while (!unflushed.empty() && context_.endpoint().flushed(peer) >= unflushed.front().put_count) {
    auto const operation = std::move(unflushed.front().operation);
    unflushed.pop_front();
    finish(operation);
  }
}

void P2PChannel::receive(P2PPart part, std::span<std::byte> output) {
  part.operation->add_parts(1);
  Peer* best = nullptr;
  std::deque<Unexpected>::iterator best_message;
  std::uint64_t best_order = std::numeric_limits<std::uint64_t>::max();
  for (int source = 0; source < context_.size(); ++source) {
    if (part.peer >= 0 && part.peer != source) continue;
    auto& unexpected = peer_at(source).unexpected;
    auto const found = std::find_if(unexpected.begin(), unexpected.end(), [&](Unexpected const& message) {
      return takes(part, source, Match{message.header.match});
    });
    if (found == unexpected.end() || found->order >= best_order) continue;
    best = &peer_at(source);
    best_message = found;
    best_order = found->order;
  }
  if (best == nullptr) {
    posted_.push_back({std::move(part), output});
    return resume_stalled();
  }
  unexpected_bytes_ -= best_message->held_bytes();
  Unexpected const message = std::move(*best_message);
  best->unexpected.erase(best_message);
  accept(static_cast<int>(best - peers_.data()), message.header, message.payload.data(), {std::move(part), output});
  resume_stalled();
}

void P2PChannel::resume_stalled() {
  for (int source = 0; num_stalled_ > 0 && source < context_.size(); ++source) {
    Peer& state = peer_at(source);
    if (!std::exchange(state.is_stalled, false)) continue;
    --num_stalled_;
    state.needed_since = {};
    consume_arrived(source);
  }
}

void P2PChannel::arrived(int source, Tag tag) {
  Peer& state = peer_at(source);
  if (tag.channel == kP2PConsumedChannel) return raise_consumed(source, tag.operation);
  auto const ahead = static_cast<std::uint16_t>(tag.operation - static_cast<std::uint16_t>(state.num_consumed));
  if (ahead >= kSlots || (state.arrived_mask >> ahead & 1u) != 0) {
    ++context_.peer_stats(source).repeated_fragments;
    return;
  }
  state.arrived_mask |= 1u << ahead;
  if (!state.is_stalled) consume_arrived(source);
}

void P2PChannel::consume_arrived(int source) {
  Peer const& state = peer_at(source);
  while ((state.arrived_mask & 1u) != 0 && consume(source)) {
  }
}

void P2PChannel::raise_consumed(int peer, std::uint16_t low) {
  Peer& state = peer_at(peer);
  std::uint64_t const count = context_.rules().consumed_count(low, state.num_consumed_by_peer, state.num_sent);
  if (count == state.num_consumed_by_peer) return;
  state.num_consumed_by_peer = count;
  push(peer);
}

bool P2PChannel::consume(int source) {
  Peer& state = peer_at(source);
  std::uint64_t const slot = context_.layout().p2p_slot(source, state.num_consumed);
  MessageHeader const header = MessageHeader::read(context_.received_at(slot));
  std::byte const* const payload = context_.received_at(slot + kHeaderBytes);
  if (!is_valid(source, header)) {
    count_consumed(source);
    return true;
  }
  raise_consumed(source, static_cast<std::uint16_t>(header.consumed));
  check_collective(source, header);
  auto const found = find_posted(source, Match{header.match});
  if (found != posted_.end()) {
    Posted const posted = std::move(*found);
    posted_.erase(found);
    accept(source, header, payload, posted);
  } else if (unexpected_bytes_ > 0 &&
             unexpected_bytes_ + sizeof(Unexpected) + Unexpected::payload_bytes(header) > unexpected_limit_bytes_) {
    state.is_stalled = true;
    ++num_stalled_;
    return false;
  } else {
    hold(source, header, payload);
  }
  count_consumed(source);
  return true;
}

bool P2PChannel::is_valid(int source, MessageHeader const& header) {
  Peer const& state = peer_at(source);
  if (header.operation != static_cast<std::uint32_t>(state.num_consumed)) {
    context_.report_error("message " + std::to_string(state.num_consumed) + " from rank " + std::to_string(source) +
                          " to rank " + std::to_string(context_.rank()) + " carries number " +
                          std::to_string(header.operation));
    return false;
  }
  if (header.kind == MessageKind::kEager && header.size_bytes > context_.layout().p2p_slot_bytes()) {
    context_.report_error("a message from rank " + std::to_string(source) + " claims " +
                          std::to_string(header.size_bytes) + " bytes in a slot of " +
                          std::to_string(context_.layout().p2p_slot_bytes()));
    return false;
  }
  return true;
}

void P2PChannel::count_consumed(int source) {
  Peer& state = peer_at(source);
  state.arrived_mask >>= 1u;
  ++state.num_consumed;
  if (state.num_consumed - state.num_reported >= kSlots / 2) {
    state.num_reported = state.num_consumed;
    context_.signal(source,
                    {.channel = kP2PConsumedChannel, .operation = static_cast<std::uint16_t>(state.num_consumed)});
  }
}

std::list<P2PChannel::Posted>::iterator P2PChannel::find_posted(int source, Match match) {
  return std::ranges::find_if(posted_, [&](Posted const& posted) { return takes(posted.part, source, match); });
}

void P2PChannel::hold(int source, MessageHeader const& header, std::byte const* payload) {
  std::size_t const num_bytes = Unexpected::payload_bytes(header);
  auto& held = peer_at(source).unexpected;
  held.push_back({header, std::vector<std::byte>(payload, payload + num_bytes), num_unexpected_++});
  unexpected_bytes_ += held.back().held_bytes();
}

void P2PChannel::accept(int source, MessageHeader const& header, std::byte const* payload, Posted const& posted) {
  auto const prefix = [&] {
    return who(posted.part.match, header.verb) + ": rank " + std::to_string(source) + " and rank " +
           std::to_string(context_.rank());
  };
  if (header.size_bytes != posted.output.size()) {
    return context_.report_error(prefix() + " disagree on the size: " + std::to_string(header.size_bytes) +
                                 " bytes were sent and " + std::to_string(posted.output.size()) + " are expected");
  }
  if (header.data_type != posted.part.data_type) {
    return context_.report_error(prefix() + " disagree on the data type: " + context_.name_of(header.data_type) +
                                 " was sent and " + context_.name_of(posted.part.data_type) + " is expected");
  }
  auto& stats = context_.peer_stats(source);
  ++stats.messages_received;
  stats.bytes_received += header.size_bytes;
  if (posted.part.peer < 0) posted.part.operation->set_source(source);
  if (header.kind == MessageKind::kRts)
    return rendezvous_.receive(source, header, posted.output, *posted.part.operation);
  if (header.size_bytes != 0) std::memcpy(posted.output.data(), payload, header.size_bytes);
  finish(posted.part.operation);
}

void P2PChannel::finish(std::shared_ptr<OperationState> const& operation) {
  operation->part_done();
  on_part_done_(*operation);
}

void P2PChannel::progress() {
  for (int peer = 0; peer < context_.size(); ++peer) {
    Peer const& state = peer_at(peer);
    if (!state.queue.empty()) push(peer);
    if (!state.unflushed.empty()) release_flushed(peer);
  }
}

void P2PChannel::cancel() {
  posted_.clear();
  for (auto& peer : peers_) {
    peer.queue.clear();
    peer.unflushed.clear();
  }
}

std::string P2PChannel::describe_stall(Clock::time_point now, std::chrono::milliseconds patience) {
  for (int source = 0; num_stalled_ > 0 && source < context_.size(); ++source) {
    Peer& state = peer_at(source);
    auto const waiting = std::ranges::find_if(
        posted_, [&](Posted const& posted) { return posted.part.peer < 0 || posted.part.peer == source; });
    if (!state.is_stalled || waiting == posted_.end()) continue;
    if (state.needed_since == Clock::time_point()) state.needed_since = now;
    if (now - state.needed_since < patience) continue;
    return "rank " + std::to_string(context_.rank()) + " holds " + std::to_string(state.unexpected.size()) +
           " messages of rank " + std::to_string(source) +
           " that it has not posted a receive for, and takes no more (" + std::to_string(unexpected_bytes_) +
           " bytes; the limit, unexpected_bytes, is " + std::to_string(unexpected_limit_bytes_) +
           "), while it waits for " + who(waiting->part.match, waiting->part.operation->verb()) + " from that rank";
  }
  return {};
}

bool P2PChannel::idle() const { return posted_.empty() && !is_sending(); }

bool P2PChannel::is_sending() const {
  return std::ranges::any_of(peers_, [](Peer const& peer) { return !peer.queue.empty() || !peer.unflushed.empty(); });
}

bool P2PChannel::needs(int peer) const {
  Peer const& state = peers_[static_cast<std::size_t>(peer)];
  if (!state.queue.empty() || !state.unflushed.empty()) return true;
  return std::any_of(posted_.begin(), posted_.end(), [&](Posted const& posted) { return posted.part.peer == peer; });
}

std::unordered_set<OperationState const*> P2PChannel::receiving_operations() const {
  std::unordered_set<OperationState const*> operations;
  for (auto const& posted : posted_) operations.insert(posted.part.operation.get());
  return operations;
}

bool P2PChannel::expects_from(int peer) const {
  return std::ranges::any_of(posted_,
                             [&](Posted const& posted) { return posted.part.peer == peer || posted.part.peer < 0; });
}

std::string P2PChannel::describe_missing() const {
  for (auto const& [part, output] : posted_) {
    std::string const from = part.peer < 0 ? "any rank" : "rank " + std::to_string(part.peer);
    return who(part.match, part.operation->verb()) + " lacks " + std::to_string(output.size()) + " bytes from " + from;
  }
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].queue.empty()) continue;
    P2PPart const& part = peers_[peer].queue.front().part;
    return who(part.match, part.operation->verb()) + " waits for rank " + std::to_string(peer) + " to take messages";
  }
  return {};
}

bool P2PChannel::lacks(int peer, OperationState const& operation) const {
  return peer != context_.rank() && std::ranges::any_of(posted_, [&](Posted const& posted) {
           return posted.part.operation.get() == &operation && (posted.part.peer == peer || posted.part.peer < 0);
         });
}

bool P2PChannel::has_queued(int peer, OperationState const& operation) const {
  return std::ranges::any_of(peers_[static_cast<std::size_t>(peer)].queue,
                             [&](Outgoing const& outgoing) { return outgoing.part.operation.get() == &operation; });
}

bool P2PChannel::has_unflushed(int peer, OperationState const& operation) const {
  return std::ranges::any_of(peers_[static_cast<std::size_t>(peer)].unflushed,
                             [&](Unflushed const& each) { return each.operation.get() == &operation; });
}

}  // namespace headway::comm
