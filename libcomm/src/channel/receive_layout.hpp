// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/protocol_rules.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_options.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::comm {

/// Layout of a rank's receive buffer. Every rank computes the same layout, so an offset suffices
/// to name a destination. The buffer has one part per source. A part holds the ring slots (channel, operation mod
/// depth), the point-to-point slots, the fragments of large messages, and one claim word per ring slot. A slot or
/// fragment starts with kHeaderBytes for the header. Sizes and offsets are bytes.
class ReceiveLayout {
 public:
  static constexpr int kP2PSlots = 16;
  static constexpr int kRendezvousFragments = 4;  ///< In flight per source; few, so that they stay in cache.
  static constexpr std::size_t kRendezvousFragmentBytes = 64 * 1024;

  /// `size`: number of ranks; `ring_slot_bytes`, `p2p_slot_bytes`: payload of a slot.
  ReceiveLayout(int size, int num_channels, int ring_depth, std::size_t ring_slot_bytes, std::size_t p2p_slot_bytes)
      : ring_depth_(static_cast<std::size_t>(ring_depth)),
        ring_slot_bytes_(ring_slot_bytes),
        ring_stride_(kHeaderBytes + round_up(ring_slot_bytes)),
        p2p_slot_bytes_(p2p_slot_bytes),
        p2p_stride_(kHeaderBytes + round_up(p2p_slot_bytes)),
        p2p_offset_(static_cast<std::size_t>(num_channels) * ring_depth_ * ring_stride_),
        rendezvous_offset_(p2p_offset_ + kP2PSlots * p2p_stride_),
        claim_offset_(rendezvous_offset_ + kRendezvousFragments * (kHeaderBytes + kRendezvousFragmentBytes)),
        source_stride_(claim_offset_ + round_up(static_cast<std::size_t>(num_channels) * ring_depth_ * kClaimBytes)),
        total_bytes_(source_stride_ * static_cast<std::size_t>(size)) {}

  /// Layout of a group.
  static ReceiveLayout of(int size, GroupOptions const& options, ProtocolRules const& rules = {}) {
    return {size, options.num_channels, rules.ring_depth(options.max_lag_limit), options.slot_bytes,
            options.message_slot_bytes};
  }

  [[nodiscard]] std::size_t total_bytes() const { return total_bytes_; }
  /// Size of one source's part. Source s writes from offset s * source_stride() on.
  [[nodiscard]] std::size_t source_stride() const { return source_stride_; }
  /// Payload that fits one ring slot.
  [[nodiscard]] std::size_t ring_slot_bytes() const { return ring_slot_bytes_; }
  [[nodiscard]] std::uint64_t ring_depth() const { return ring_depth_; }
  /// Payload that fits one point-to-point slot.
  [[nodiscard]] std::size_t p2p_slot_bytes() const { return p2p_slot_bytes_; }

  /// Offset of a ring slot. `slot` is the operation number modulo the depth.
  [[nodiscard]] std::uint64_t ring_slot(int source, int channel, std::size_t slot) const {
    return base(source) + (static_cast<std::size_t>(channel) * ring_depth_ + slot) * ring_stride_;
  }
  /// Offset of the claim word of a ring slot: operation number + 1 of the newest claimed block. The side that wins the
  /// claim, receiver or sender, moves the block.
  [[nodiscard]] std::uint64_t ring_claim(int source, int channel, std::size_t slot) const {
    return base(source) + claim_offset_ + (static_cast<std::size_t>(channel) * ring_depth_ + slot) * kClaimBytes;
  }
  /// Offset of the slot of message number `message` of a pair of ranks.
  [[nodiscard]] std::uint64_t p2p_slot(int source, std::uint64_t message) const {
    return base(source) + p2p_offset_ + message % kP2PSlots * p2p_stride_;
  }
  /// Offset of the area for fragment number `fragment` of a transfer.
  [[nodiscard]] std::uint64_t rendezvous_slot(int source, std::uint64_t fragment) const {
    return base(source) + rendezvous_offset_ +
           fragment % kRendezvousFragments * (kHeaderBytes + kRendezvousFragmentBytes);
  }

 private:
  static constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
  [[nodiscard]] std::size_t base(int source) const { return source_stride_ * static_cast<std::size_t>(source); }

  static constexpr std::size_t kClaimBytes = sizeof(std::uint64_t);
  std::size_t ring_depth_, ring_slot_bytes_, ring_stride_, p2p_slot_bytes_, p2p_stride_, p2p_offset_,
      rendezvous_offset_, claim_offset_, source_stride_, total_bytes_;
};

}  // namespace headway::comm
