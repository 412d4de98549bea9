#pragma once

#include "headway/comm/group.hpp"
#include "mutant.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::comm {

/// Layout of a rank's landing segment (its receive buffer). Every rank computes the same layout, so an offset suffices
/// to name a destination. The segment has one part per source. A part holds the ring slots (channel, operation mod
/// depth), the pair slots, the fragments of large transfers, and one claim word per ring slot. A slot or fragment
/// starts with kHeaderBytes for the header. Sizes and offsets are bytes.
class LandingLayout {
 public:
  static constexpr int kPairSlots = 16;
  static constexpr std::size_t kPairSlotBytes = 8 * 1024;  ///< Payload of one pair slot.
  static constexpr int kTransferFragments = 4;             ///< In flight per source; few, so that they stay in cache.
  static constexpr std::size_t kTransferFragmentBytes = 64 * 1024;

  /// `size`: number of ranks; `ring_slot_bytes`: payload of one ring slot.
  LandingLayout(int size, int num_rings, int ring_depth, std::size_t ring_slot_bytes)
      : ring_depth_(static_cast<std::size_t>(ring_depth)),
        ring_slot_bytes_(ring_slot_bytes),
        ring_stride_(kHeaderBytes + round_up(ring_slot_bytes)),
        pair_offset_(static_cast<std::size_t>(num_rings) * ring_depth_ * ring_stride_),
        transfer_offset_(pair_offset_ + kPairSlots * (kHeaderBytes + kPairSlotBytes)),
        claim_offset_(transfer_offset_ + kTransferFragments * (kHeaderBytes + kTransferFragmentBytes)),
        source_stride_(claim_offset_ + round_up(static_cast<std::size_t>(num_rings) * ring_depth_ * kClaimBytes)),
        total_bytes_(source_stride_ * static_cast<std::size_t>(size)) {}

  /// Layout of a group. Its rings have depth 2 (max_lag_limit + 1).
  static LandingLayout of(int size, GroupOptions const& options) {
    bool const is_shallow = is_planted(mutant_from(options.mutant), Mutant::kShallowRing);
    return {size, options.num_channels, 2 * (options.max_lag_limit + 1) - (is_shallow ? 1 : 0), options.slot_bytes};
  }

  [[nodiscard]] std::size_t total_bytes() const { return total_bytes_; }
  /// Size of one source's part. Source s writes from offset s * source_stride() on.
  [[nodiscard]] std::size_t source_stride() const { return source_stride_; }
  /// Payload that fits one ring slot.
  [[nodiscard]] std::size_t ring_slot_bytes() const { return ring_slot_bytes_; }
  [[nodiscard]] std::uint64_t ring_depth() const { return ring_depth_; }

  /// Offset of a ring slot. `slot` is the operation number modulo the depth.
  [[nodiscard]] std::uint64_t ring_slot(int source, int ring, std::size_t slot) const {
    return base(source) + (static_cast<std::size_t>(ring) * ring_depth_ + slot) * ring_stride_;
  }
  /// Offset of the claim word of a ring slot: operation number + 1 of the newest claimed block. The side that wins the
  /// claim, receiver or sender, moves the block.
  [[nodiscard]] std::uint64_t ring_claim(int source, int ring, std::size_t slot) const {
    return base(source) + claim_offset_ + (static_cast<std::size_t>(ring) * ring_depth_ + slot) * kClaimBytes;
  }
  /// Offset of the slot of message number `message` of the pair.
  [[nodiscard]] std::uint64_t pair_slot(int source, std::uint64_t message) const {
    return base(source) + pair_offset_ + message % kPairSlots * (kHeaderBytes + kPairSlotBytes);
  }
  /// Offset of the area for fragment number `fragment` of a transfer.
  [[nodiscard]] std::uint64_t transfer_slot(int source, std::uint64_t fragment) const {
    return base(source) + transfer_offset_ + fragment % kTransferFragments * (kHeaderBytes + kTransferFragmentBytes);
  }

 private:
  static constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
  [[nodiscard]] std::size_t base(int source) const { return source_stride_ * static_cast<std::size_t>(source); }

  static constexpr std::size_t kClaimBytes = sizeof(std::uint64_t);
  std::size_t ring_depth_, ring_slot_bytes_, ring_stride_, pair_offset_, transfer_offset_, claim_offset_,
      source_stride_, total_bytes_;
};

}  // namespace headway::comm
