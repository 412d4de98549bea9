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
/// consumed; the consumed count comes back late, which only makes the sender wait. A message that nobody waits for yet
/// is moved to the heap, so that it never stops the ones behind it; of a large one only the offer is held.
class PairChannel {
 public:
  using PartDone = Transfers::PartDone;
  PairChannel(Wire& wire, Transfers& transfers, PartDone on_part_done);

  void send(PairPart part, std::span<std::byte const> payload);
  void receive(PairPart part, std::span<std::byte> output);
  /// Announces that this rank runs `verb` as its next collective. @returns the collective's number.
  std::uint64_t begin_collective(Verb verb, int root);
  [[nodiscard]] std::uint64_t num_collectives() const { return num_collectives_; }

  void arrived(int source, Tag tag);
  void progress();
  void cancel();

  [[nodiscard]] bool idle() const;
  [[nodiscard]] bool needs(int peer) const;
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
  };
  struct Peer {
    std::deque<Outgoing> queue;  ///< Not accepted by the endpoint yet.
    std::deque<Unflushed> unflushed;
    std::uint64_t num_sent = 0, num_consumed_by_peer = 0;
    std::uint64_t num_consumed = 0, num_reported = 0;
    std::uint32_t arrived_mask = 0;  ///< Bit i: message num_consumed + i has arrived.
    std::deque<Unexpected> unexpected;
  };

  void push(int peer);
  bool put_front(int peer, Outgoing const& outgoing);
  void release_flushed(int peer);
  void consume(int source);
  void deliver(int source, MessageHeader const& header, std::byte const* payload);
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
  PartDone on_part_done_;
  std::vector<Peer> peers_;
  std::list<Posted> posted_;
  std::uint64_t num_unexpected_ = 0;
  std::uint64_t num_collectives_ = 0;
  std::array<CollectiveRecord, 256> recent_collectives_{};
};

}  // namespace headway::comm
