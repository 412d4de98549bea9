// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/all_to_all_operation.hpp"
#include "channel/channel_context.hpp"
#include "channel/rendezvous_protocol.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::comm {

/// Fragment of a tag: the block of a revoked RTS is in the slot.
inline constexpr std::uint8_t kRevokedFragment = 1;

/// Sending half of an all-to-all channel: puts blocks into the slots of the peers, announces large ones by a
/// ready-to-send message (RTS), and revokes an RTS that no receiver takes: it then sends the block itself.
/// all_to_all_channel.cpp explains the algorithm. Used under the group's lock.
class AllToAllSender {
 public:
  AllToAllSender(ChannelContext& context, RendezvousProtocol& rendezvous, GroupOptions const& options, int channel);

  /// Lets the transport prefetch slot `slot` of the ring at each peer.
  void prepare(AllToAllArgs const& args, std::size_t slot);
  /// Sends the messages to all peers, then copies the own block. @returns false if credit ran out: the transport
  /// accepts no more messages to a peer now. A later call goes on at next_to_post.
  [[nodiscard]] bool post(AllToAllOperation& operation, int max_lag);
  /// Peer that gets the next message. Ranks start with different peers, so that no receiver is first for all senders.
  [[nodiscard]] int next_peer(AllToAllOperation const& operation) const {
    int const unwrapped = context_.rank() + 1 + operation.next_to_post;
    return unwrapped < context_.size() ? unwrapped : unwrapped - context_.size();
  }

  /// Revokes the open RTS of a posted `operation` if they are overdue and it waits for nothing else, and sends their
  /// blocks. @returns when to call again; Deadline::max(): not needed.
  Deadline revoke_overdue(AllToAllOperation& operation, Clock::time_point now);
  /// Number of revoked blocks that wait for credit.
  [[nodiscard]] int num_unsent() const { return num_unsent_; }
  /// All operations were cancelled.
  void cancel() { num_unsent_ = 0; }

  [[nodiscard]] bool is_flushed(AllToAllOperation::UnflushedPut const& put) const {
    return context_.endpoint().flushed(put.peer) >= put.put_count;
  }
  [[nodiscard]] bool all_flushed(AllToAllOperation const& operation) const {
    return std::ranges::all_of(operation.unflushed, [&](auto const& put) { return is_flushed(put); });
  }
  /// Is a put to `peer` not flushed?
  [[nodiscard]] bool has_unflushed(AllToAllOperation const& operation, int peer) const {
    return std::ranges::any_of(operation.unflushed,
                               [&](auto const& put) { return put.peer == peer && !is_flushed(put); });
  }

 private:
  /// Puts the block, or an RTS of it, for `peer`. @returns false if credit is missing.
  bool send_block(AllToAllOperation& operation, int peer, int max_lag);
  /// Does a block go into the slot of its message with one put?
  [[nodiscard]] bool fits_slot(std::span<std::byte const> block, int peer) const {
    return block.size() <= std::min(context_.layout().ring_slot_bytes(), context_.traits(peer).max_put_bytes);
  }
  /// Announces the block for `peer` by an RTS. @returns false if credit or a free rendezvous is missing.
  [[nodiscard]] bool send_rts(AllToAllOperation& operation, int peer, int max_lag, MessageHeader header);
  /// Are the bytes of the whole ring, with blocks of this size, too many to stay in cache (get_footprint)?
  [[nodiscard]] bool leaves_cache(AllToAllOperation const& operation) const;
  /// Claims the open RTS of `operation` and sends the blocks of those that no receiver is reading.
  void revoke(AllToAllOperation& operation);
  /// Sends the blocks of revoked RTS. Those without credit stay for the next call.
  void put_revoked(AllToAllOperation& operation);
  /// Records a put that still needs its block.
  void record_put(AllToAllOperation& operation, int peer);
  [[nodiscard]] std::uint64_t slot_at_peer(AllToAllOperation const& operation) const {
    return context_.layout().ring_slot(context_.rank(), channel_, operation.slot);
  }
  [[nodiscard]] Tag tag_of(AllToAllOperation const& operation, std::uint8_t fragment) const {
    return {.channel = static_cast<std::uint8_t>(channel_),
            .operation = static_cast<std::uint16_t>(operation.seq()),
            .fragment = fragment};
  }

  ChannelContext& context_;
  RendezvousProtocol& rendezvous_;
  int channel_;
  std::size_t min_get_bytes_;               ///< Least size of a block that the receiver reads.
  std::size_t get_footprint_;               ///< Larger rings (all slots, in bytes) leave the cache.
  std::chrono::microseconds rts_patience_;  ///< Wait per started 256 KiB before a revocation.
  int num_unsent_ = 0;
};

}  // namespace headway::comm
