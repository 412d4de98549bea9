// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/channel_context.hpp"
#include "channel/operation_state.hpp"
#include "channel/rendezvous_protocol.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace headway::comm {

/// Value by which a receiver finds a message. Below 2^63 the user chooses it; a collective has bit 63 set, its root in
/// bits 40 to 62 and its sequence number in bits 0 to 39.
struct Match {
  std::uint64_t value = 0;

  static Match collective(std::uint64_t sequence, int root) {
    return {std::uint64_t{1} << 63 | static_cast<std::uint64_t>(root) << 40 | sequence};
  }
  [[nodiscard]] bool is_collective() const { return value >> 63 != 0; }
  [[nodiscard]] std::uint64_t sequence() const { return value & ((std::uint64_t{1} << 40) - 1); }
  [[nodiscard]] int root() const { return static_cast<int>(value >> 40 & 0x7fffff); }
  friend bool operator==(Match, Match) = default;
};

/// One message to send or to receive: a part of an operation.
struct P2PPart {
  std::shared_ptr<OperationState> operation;
  int peer = -1;  ///< -1 for a receive from any rank.
  Match match;
  DataType data_type = 0;
};

/// Point-to-point messages, in order per pair of ranks, found by match. All collectives but all-to-alls consist of
/// them. p2p_channel.cpp explains the flow control. Used under the group's lock.
///
/// An unexpected message, which comes before its receive is posted, moves to the heap, so that it does not stop the
/// messages behind it. For a large message only the announcement is held (RTS, ready to send). Above a limit in
/// bytes the message stays in its slot: its source is stalled, and the sender waits for a free slot until a receive
/// takes one of the held messages.
class P2PChannel {
 public:
  using PartDone = RendezvousProtocol::PartDone;
  /// `unexpected_limit_bytes` is GroupOptions::unexpected_bytes.
  P2PChannel(ChannelContext& context, RendezvousProtocol& rendezvous, std::size_t unexpected_limit_bytes,
             PartDone on_part_done);

  /// Sends one message as soon as slots and credit allow.
  void send(P2PPart part, std::span<std::byte const> payload);
  /// Posts a receive, or takes the oldest unexpected message that matches.
  void receive(P2PPart part, std::span<std::byte> output);
  /// Starts this rank's next collective, `verb`, and compares it with messages that came early. @returns its number.
  std::uint64_t begin_collective(Verb verb, int root);
  [[nodiscard]] std::uint64_t num_collectives() const { return num_collectives_; }

  /// Handles a tag of kP2PChannel or kP2PConsumedChannel.
  void arrived(int source, Tag tag);
  /// Goes on with sends that waited, and ends parts whose puts are flushed.
  void progress();
  /// Drops posted receives and pending sends.
  void cancel();

  /// Describes a source that has been stalled for `patience` while a receive waits for it. Empty if there is none.
  [[nodiscard]] std::string describe_stall(Clock::time_point now, std::chrono::milliseconds patience);

  [[nodiscard]] bool idle() const;
  /// Is a message queued or unflushed?
  [[nodiscard]] bool is_sending() const;
  /// Is a message to `peer` queued or unflushed, or a receive from it posted?
  [[nodiscard]] bool needs(int peer) const;
  /// Does a posted receive take a message of `peer`, or of any rank?
  [[nodiscard]] bool expects_from(int peer) const;
  /// Operations with a posted receive.
  [[nodiscard]] std::unordered_set<OperationState const*> receiving_operations() const;
  /// Describes the oldest posted receive or, without one, a send that waits.
  [[nodiscard]] std::string describe_missing() const;
  /// Does `operation` lack a message of `peer`? A receive from any rank lacks one of each peer.
  [[nodiscard]] bool lacks(int peer, OperationState const& operation) const;
  /// Is a message of `operation` to `peer` still queued?
  [[nodiscard]] bool has_queued(int peer, OperationState const& operation) const;
  /// Is a message of `operation` to `peer` posted, but its memory still needed?
  [[nodiscard]] bool has_unflushed(int peer, OperationState const& operation) const;

 private:
  /// A message that the endpoint has not accepted.
  struct Outgoing {
    P2PPart part;
    std::span<std::byte const> payload;
  };
  /// An accepted message whose payload is still needed, until flushed(peer) reaches put_count.
  struct Unflushed {
    std::shared_ptr<OperationState> operation;
    std::uint64_t put_count;
  };
  /// A posted receive.
  struct Posted {
    P2PPart part;
    std::span<std::byte> output;
  };
  /// A message that came before its receive.
  struct Unexpected {
    MessageHeader header;
    std::vector<std::byte> payload;  ///< Empty for an RTS.
    std::uint64_t order;             ///< Arrival number, over all sources.

    [[nodiscard]] std::size_t held_bytes() const { return sizeof(Unexpected) + payload_bytes(header); }
    [[nodiscard]] static std::size_t payload_bytes(MessageHeader const& header) {
      return header.kind == MessageKind::kEager ? header.size_bytes : 0;
    }
  };
  /// State towards one peer.
  struct Peer {
    std::deque<Outgoing> queue;  ///< Messages that the endpoint has not accepted, in order.
    std::deque<Unflushed> unflushed;
    /// Messages to the peer: sent, and known to be consumed there.
    std::uint64_t num_sent = 0, num_consumed_by_peer = 0;
    /// Messages from the peer: consumed here, and the count last reported to it.
    std::uint64_t num_consumed = 0, num_reported = 0;
    std::uint32_t arrived_mask = 0;  ///< Bit i: message num_consumed + i has arrived.
    std::deque<Unexpected> unexpected;
    /// The next message of this source stays in its slot: too many bytes are held.
    bool is_stalled = false;
    /// When a receive was first seen to wait for the stalled source; the epoch: not yet.
    Clock::time_point needed_since{};
  };

  /// Puts queued messages to `peer`, as far as slots and credit allow.
  void push(int peer);
  bool put_front(int peer, Outgoing const& outgoing);
  void release_flushed(int peer);
  /// Consumes messages of `source` that arrived, in order.
  void consume_arrived(int source);
  /// Consumes the next message of `source`.
  /// @returns false, and stalls the source, if the message is unexpected and too many bytes are held already.
  bool consume(int source);
  /// Frees the slot of a consumed message; reports the count after every kP2PSlots / 2 messages.
  void count_consumed(int source);
  /// Checks number and size of a message.
  [[nodiscard]] bool is_valid(int source, MessageHeader const& header);
  /// Tries stalled sources again.
  void resume_stalled();
  [[nodiscard]] std::list<Posted>::iterator find_posted(int source, Match match);
  /// Moves an unexpected message to the heap.
  void hold(int source, MessageHeader const& header, std::byte const* payload);
  /// Compares a message with its receive, then copies its payload or starts the rendezvous for it.
  void accept(int source, MessageHeader const& header, std::byte const* payload, Posted const& posted);
  /// Raises the count of messages that `peer` has consumed; `low` is its low 16 bits.
  void raise_consumed(int peer, std::uint16_t low);
  void finish(std::shared_ptr<OperationState> const& operation);
  /// Reports an error if this rank ran the collective of the message as another kind or with another root.
  void check_collective(int source, MessageHeader const& header);
  [[nodiscard]] Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  /// A collective that this rank has started.
  struct CollectiveRecord {
    Verb verb;
    int root;
  };

  ChannelContext& context_;
  RendezvousProtocol& rendezvous_;
  std::size_t unexpected_limit_bytes_;
  PartDone on_part_done_;
  std::vector<Peer> peers_;
  std::list<Posted> posted_;
  std::uint64_t num_unexpected_ = 0;  ///< Unexpected messages so far.
  std::size_t unexpected_bytes_ = 0;  ///< Bytes of unexpected messages held now, over all sources.
  int num_stalled_ = 0;               ///< Number of stalled sources.
  std::uint64_t num_collectives_ = 0;
  /// Indexed by collective number mod 256.
  std::array<CollectiveRecord, 256> recent_collectives_{};
};

}  // namespace headway::comm
