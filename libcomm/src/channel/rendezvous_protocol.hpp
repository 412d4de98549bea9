// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/channel_context.hpp"
#include "channel/operation_state.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Rendezvous of payloads that do not fit the slot of their message; rendezvous_protocol.cpp explains the protocol. The
/// message is an RTS. Once the receiver knows the output, it takes the payload in the best way that the transport
/// allows:
///   get       reads it from the sender's memory, then signals done              (shm where the host allows it, inproc)
///   window    opens a window on the output and signals ready; the sender puts the payload (tcp, verbs)
///   fragments grants fragments that the sender puts into a small area in cache  (everywhere else)
/// The largest payloads skip get while both sides wait in all_to_all_v_and_wait().
/// Each transfer is one part of its operation: its end calls part_done() there, then `on_part_done`. Used under the
/// group's lock.
class RendezvousProtocol {
 public:
  using PartDone = std::function<void(OperationState&)>;
  RendezvousProtocol(ChannelContext& context, GroupOptions const& options, PartDone on_part_done);

  /// Are all transfer numbers to `peer` in use? Then an RTS must wait until one is free.
  [[nodiscard]] bool is_full(int peer) const {
    Peer const& state = peers_[static_cast<std::size_t>(peer)];
    return state.outgoing.contains(static_cast<std::uint16_t>(state.next_id));
  }
  /// Sending an RTS takes two calls. This one fills the RTS's fields of `header`, and must not be called while
  /// is_full(). `payload` must stay valid until the part is done. After the put of the RTS, call rts_sent().
  void prepare_rts(int peer, std::span<std::byte const> payload, MessageHeader& header) const;
  /// Registers an RTS that was put. @returns the transfer number.
  std::uint16_t rts_sent(int peer, std::span<std::byte const> payload, OperationState& operation);
  /// Is an accepted RTS neither done nor forgotten?
  [[nodiscard]] bool is_open(int peer, std::uint16_t id) const {
    return peers_[static_cast<std::size_t>(peer)].outgoing.contains(id);
  }
  /// Drops an RTS that the receiver will not take. The caller must complete its part of the operation.
  void forget(int peer, std::uint16_t id) { num_pending_ -= static_cast<int>(peer_at(peer).outgoing.erase(id)); }

  /// Receives the payload of `rts` into `output`; the caller has compared the sizes. `is_blocking`: this rank polls
  /// until the payload is there.
  void receive(int source, MessageHeader const& rts, std::span<std::byte> output, OperationState& operation,
               bool is_blocking = false);

  /// Handles a tag of the kRendezvous channels.
  void arrived(int source, Tag tag);
  /// Goes on with puts that the transport refused for lack of credit, and ends transfers whose puts are flushed.
  void progress();
  /// Drops all transfers and closes windows.
  void cancel();

  /// Is any transfer from or to `peer` under way?
  [[nodiscard]] bool busy_with(int peer) const;
  [[nodiscard]] bool idle() const { return num_pending_ == 0; }
  /// Do peers put payloads into outputs of this rank now?
  [[nodiscard]] bool has_windows() const { return num_windows_ > 0; }
  /// Describes the open transfers of `operation`: "waits for rank 2 to take 5000 bytes". Empty if there are none.
  [[nodiscard]] std::string describe_missing(OperationState const& operation) const;
  /// Is a payload of `operation` from `peer` under way?
  [[nodiscard]] bool receives_from(int peer, OperationState const& operation) const;
  /// Is any payload from `peer` under way?
  [[nodiscard]] bool receives_from(int peer) const {
    Peer const& state = peers_[static_cast<std::size_t>(peer)];
    return !state.windows.empty() || !state.fragmented.empty();
  }
  /// Is a payload of `operation` to `peer` still to be taken?
  [[nodiscard]] bool sends_to(int peer, OperationState const& operation) const;

 private:
  /// A payload of which this rank sent an RTS.
  struct Outgoing {
    std::span<std::byte const> payload;
    OperationState* operation;
    std::uint64_t granted = 0, sent = 0;  ///< Number of pieces.
    bool has_window = false;              ///< The receiver opened a window on its output: all pieces go there.
    bool all_put = false;                 ///< Every piece was put.
    std::uint64_t last_put = 0;  ///< put_count after the last put. The payload is free when flushed(peer) reaches it.
  };
  /// Set of pieces that have arrived: all below `begin`, and begin + i if bit i is set. At most 64 are in flight.
  struct Pieces {
    std::uint64_t begin = 0, bits = 0;

    /// Marks the arrival of the piece with number `fragment` mod 256.
    /// @returns its distance from `begin`; -1 if it was marked before or is not among the next `num_under_way`.
    int mark(std::uint8_t fragment, int num_under_way, ProtocolRules const& rules);
    /// Advances `begin` by one if that piece has arrived. @returns whether it did.
    bool take();
  };
  /// A payload that this rank receives.
  struct Incoming {
    std::uint64_t id;  ///< Transfer number.
    std::span<std::byte> output;
    OperationState* operation;
    Pieces pieces = {};  ///< The pieces below `begin` are in the output.
  };
  /// All transfers with one peer. Maps are keyed by transfer number.
  struct Peer {
    std::uint32_t next_id = 0;  ///< Number of the next RTS to the peer.
    std::map<std::uint16_t, Outgoing> outgoing;
    std::vector<std::uint16_t> moving;  ///< Transfers of `outgoing` whose pieces the receiver asked for.
    std::map<std::uint16_t, Incoming> windows;
    std::deque<Incoming> fragmented;  ///< Only the front one is active, since all share the fragment area.
  };

  /// Puts pieces up to the grant, as far as the credit allows.
  void push(int peer, std::uint16_t id, Outgoing& transfer);
  void window_piece_arrived(int source, Incoming& transfer, Tag tag);
  void fragment_arrived(int source, Tag tag);
  /// Allows the sender to put pieces below `pieces.begin + num_under_way`.
  void grant(int source, Incoming const& transfer, int num_under_way);
  void finish(OperationState& operation);
  [[nodiscard]] Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  ChannelContext& context_;
  std::size_t stream_bytes_;  ///< GroupOptions::stream_bytes.
  PartDone on_part_done_;
  std::vector<Peer> peers_;
  int num_pending_ = 0;  ///< Open transfers, over all peers.
  int num_windows_ = 0;  ///< Windows among them.
};

}  // namespace headway::comm
