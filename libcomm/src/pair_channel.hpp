#pragma once

#include "operation_state.hpp"
#include "transfer.hpp"
#include "wire.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace headway::comm {

/// What a receiver compares to find a message. Collectives take the numbers from 2^63 on.
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

/// One message to send or to receive, as a part of an operation.
struct PairPart {
  std::shared_ptr<OperationState> operation;
  int peer = -1;  ///< -1 when receiving: from any rank.
  Match match;
  DataType data_type = 0;
};

/// Messages between pairs of ranks, in order per pair, found by match; all collectives but all-to-all are made of them.
///
/// Message i of a pair takes slot i mod kPairSlots at the receiver, and is put only when message i - kPairSlots is
/// consumed; the consumed count comes back late, which only makes the sender wait. An unexpected message, for which no
/// receive is posted yet, is moved to the heap, so that it does not stop the ones behind it; of a large one only the
/// offer is held. Above a limit in bytes it stays in its slot: its source is stalled then, and the sender waits for a
/// slot, until a receive takes one of the messages that are held.
class PairChannel {
 public:
  using PartDone = Transfers::PartDone;
  /// `unexpected_limit_bytes`: GroupOptions::unexpected_bytes.
  PairChannel(Wire& wire, Transfers& transfers, std::size_t unexpected_limit_bytes, PartDone on_part_done);

  void send(PairPart part, std::span<std::byte const> payload);
  void receive(PairPart part, std::span<std::byte> output);
  /// Announces that this rank runs `verb` as its next collective. @returns the collective's number.
  std::uint64_t begin_collective(Verb verb, int root);
  [[nodiscard]] std::uint64_t num_collectives() const { return num_collectives_; }

  void arrived(int source, Tag tag);
  void progress();
  void cancel();

  /// Describes a source that has been stalled for `patience` while a receive waits for it; empty: there is none.
  [[nodiscard]] std::string describe_stall(Clock::time_point now, std::chrono::milliseconds patience);

  [[nodiscard]] bool idle() const;
  [[nodiscard]] bool needs(int peer) const;
  /// Whether an operation still takes a message of `peer`, or of any rank.
  [[nodiscard]] bool expects_from(int peer) const;
  /// The operations that still take a message.
  [[nodiscard]] std::unordered_set<OperationState const*> receiving_operations() const;
  [[nodiscard]] std::string describe_missing() const;
  /// Whether `operation` still lacks a message of `peer`; one that any rank may send is lacking from all.
  [[nodiscard]] bool lacks(int peer, OperationState const& operation) const;
  /// Whether a message of `operation` has not been accepted for `peer` yet.
  [[nodiscard]] bool has_queued(int peer, OperationState const& operation) const;
  /// Whether a message of `operation` is on its way to `peer`, and its memory is still needed.
  [[nodiscard]] bool has_unflushed(int peer, OperationState const& operation) const;

 private:
  struct Outgoing {
    PairPart part;
    std::span<std::byte const> payload;
  };
  struct Unflushed {
    std::shared_ptr<OperationState> operation;
    std::uint64_t put_count;
  };
  struct Posted {
    PairPart part;
    std::span<std::byte> output;
  };
  struct Unexpected {
    MessageHeader header;
    std::vector<std::byte> payload;  ///< Empty for offers.
    std::uint64_t order;             ///< Of arrival, over all sources.

    [[nodiscard]] std::size_t held_bytes() const { return sizeof(Unexpected) + payload_bytes(header); }
    [[nodiscard]] static std::size_t payload_bytes(MessageHeader const& header) {
      return header.kind == MessageKind::kEager ? header.size_bytes : 0;
    }
  };
  struct Peer {
    std::deque<Outgoing> queue;  ///< Not accepted by the endpoint yet.
    std::deque<Unflushed> unflushed;
    std::uint64_t num_sent = 0, num_consumed_by_peer = 0;
    std::uint64_t num_consumed = 0, num_reported = 0;
    std::uint32_t arrived_mask = 0;  ///< Bit i: message num_consumed + i has arrived.
    std::deque<Unexpected> unexpected;
    bool is_stalled = false;
    Clock::time_point needed_since{};  ///< When a receive was first seen to wait for the stalled source.
  };

  void push(int peer);
  bool put_front(int peer, Outgoing const& outgoing);
  void release_flushed(int peer);
  void consume_arrived(int source);
  /// Takes the next message of `source`. @returns false, and stalls the source, if the message is unexpected and too
  /// much is held already.
  bool consume(int source);
  void count_consumed(int source);
  [[nodiscard]] bool is_valid(int source, MessageHeader const& header);
  void resume_stalled();
  [[nodiscard]] std::list<Posted>::iterator find_posted(int source, Match match);
  void hold(int source, MessageHeader const& header, std::byte const* payload);
  void accept(int source, MessageHeader const& header, std::byte const* payload, Posted const& posted);
  void note_consumed(int peer, std::uint16_t low);
  void finish(std::shared_ptr<OperationState> const& operation);
  void check_collective(int source, MessageHeader const& header);
  [[nodiscard]] Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  struct CollectiveRecord {
    Verb verb;
    int root;
  };

  Wire& wire_;
  Transfers& transfers_;
  std::size_t unexpected_limit_bytes_;
  PartDone on_part_done_;
  std::vector<Peer> peers_;
  std::list<Posted> posted_;
  std::uint64_t num_unexpected_ = 0;  ///< So far.
  std::size_t unexpected_bytes_ = 0;  ///< Held now, of all sources.
  int num_stalled_ = 0;               ///< Sources.
  std::uint64_t num_collectives_ = 0;
  std::array<CollectiveRecord, 256> recent_collectives_{};
};

}  // namespace headway::comm
