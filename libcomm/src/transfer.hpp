#pragma once

#include "operation_state.hpp"
#include "wire.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Moves payloads that do not fit the slot that their message has. The message is then an offer; the receiver, once it
/// knows the output, takes the payload in the best way the engine has:
///   get       reads it from the sender's memory, then signals done            (shm where the host allows it, inproc)
///   exposed   exposes its output and signals ready; the sender puts it there  (tcp, verbs)
///   fragments grants fragments that the sender puts into a small area which stays in cache (everywhere else, and for
///             the largest payloads while both sides attend to them)
/// Each part ends with part_done() on the operation that it belongs to, and `on_part_done` is told.
class Transfers {
 public:
  using PartDone = std::function<void(OperationState&)>;
  Transfers(Wire& wire, GroupOptions const& options, PartDone on_part_done);

  /// Whether all numbers for payloads to `peer` are taken: an offer must wait until one of them is done.
  [[nodiscard]] bool is_full(int peer) const {
    Peer const& state = peers_[static_cast<std::size_t>(peer)];
    return state.outgoing.contains(static_cast<std::uint16_t>(state.next_number));
  }
  /// Fills the offer's fields of `header` for `payload`, which must stay valid until the part is done.
  /// Call accepted() after the offer was put. Not while is_full().
  void prepare_offer(int peer, std::span<std::byte const> payload, MessageHeader& header) const;
  /// @returns the transfer's number.
  std::uint16_t accepted(int peer, std::span<std::byte const> payload, OperationState& operation);
  /// Whether an accepted offer is neither done nor forgotten.
  [[nodiscard]] bool is_open(int peer, std::uint16_t number) const {
    return peers_[static_cast<std::size_t>(peer)].outgoing.contains(number);
  }
  /// The payload will not be taken: its part of the operation is the caller's to finish.
  void forget(int peer, std::uint16_t number) {
    num_pending_ -= static_cast<int>(peer_at(peer).outgoing.erase(number));
  }

  /// Takes the payload that `offer` announces into `output`, whose size was compared with the offer's.
  /// `is_attended`: this rank looks at what arrives all the time until then.
  void take(int source, MessageHeader const& offer, std::span<std::byte> output, OperationState& operation,
            bool is_attended = false);

  void arrived(int source, Tag tag);
  /// Moves puts on that had no credit.
  void progress();
  /// Ends everything; exposed memory is withdrawn.
  void cancel();

  /// Whether anything is under way with `peer`.
  [[nodiscard]] bool busy_with(int peer) const;
  [[nodiscard]] bool idle() const { return num_pending_ == 0; }
  /// Whether peers put payloads into outputs of this rank.
  [[nodiscard]] bool exposes() const { return num_exposed_ > 0; }
  /// What payloads of `operation` wait for: "waits for rank 2 to take 5000 bytes"; empty where none is under way.
  [[nodiscard]] std::string describe_missing(OperationState const& operation) const;
  /// Whether a payload of `operation` from or to `peer` is under way.
  [[nodiscard]] bool takes_from(int peer, OperationState const& operation) const;
  /// Whether any payload from `peer` is.
  [[nodiscard]] bool takes_from(int peer) const {
    Peer const& state = peers_[static_cast<std::size_t>(peer)];
    return !state.exposed.empty() || !state.fragmented.empty();
  }
  [[nodiscard]] bool gives_to(int peer, OperationState const& operation) const;

 private:
  struct Outgoing {
    std::span<std::byte const> payload;
    OperationState* operation;
    std::uint64_t granted = 0, sent = 0;  ///< Pieces.
    bool is_exposed = false;              ///< The receiver exposed its output: pieces go there, all of them.
    bool all_put = false;
    std::uint64_t last_put = 0;  ///< put_count after the last put: the payload is free once it is flushed.
  };
  /// Which pieces have arrived, of which at most 64 are under way at a time: all below `begin`, and begin + i if bit i
  /// is set.
  struct Pieces {
    std::uint64_t begin = 0, bits = 0;

    /// Place of piece `fragment` (its number modulo 256) after `begin`, now noted; -1 if it was noted before, or is not
    /// among the next `num_under_way`.
    int note(std::uint8_t fragment, int num_under_way);
    /// Goes on to the next piece if the first one has arrived.
    bool take();
  };
  struct Incoming {
    std::uint64_t number;
    std::span<std::byte> output;
    OperationState* operation;
    Pieces pieces = {};  ///< Those below `begin` are in the output.
  };
  struct Peer {
    std::uint32_t next_number = 0;
    std::map<std::uint16_t, Outgoing> outgoing;
    std::vector<std::uint16_t> moving;  ///< Those of `outgoing` whose pieces the receiver has asked for.
    std::map<std::uint16_t, Incoming> exposed;
    std::deque<Incoming> fragmented;  ///< The front one is active.
  };

  void push(int peer, std::uint16_t number, Outgoing& transfer);
  void exposed_piece_arrived(int source, Incoming& transfer, Tag tag);
  void fragment_arrived(int source, Tag tag);
  /// Lets the sender put the pieces up to the first one that lacks plus `num_under_way`.
  void grant(int source, Incoming const& transfer, int num_under_way);
  void finish(OperationState& operation);
  [[nodiscard]] Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  Wire& wire_;
  std::size_t stream_bytes_;
  PartDone on_part_done_;
  std::vector<Peer> peers_;
  int num_pending_ = 0;  ///< Entries of all peers.
  int num_exposed_ = 0;  ///< Those that are exposed.
};

}  // namespace headway::comm
