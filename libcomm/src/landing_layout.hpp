#pragma once

#include "headway/comm/group.hpp"
#include "mutant.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::comm {

/// Where messages land in a rank's landing segment. Every rank computes the same layout, so a destination is an offset.
/// Per source: ring slots (channel, operation mod depth), then pair slots, then fragments of large transfers, then a
/// claim word for each ring slot.
class LandingLayout {
 public:
  static constexpr int kPairSlots = 16;
  static constexpr std::size_t kPairSlotBytes = 8 * 1024;  ///< Payload of one pair slot.
  static constexpr int kTransferFragments = 4;             ///< In flight per source: they stay in cache.
  static constexpr std::size_t kTransferFragmentBytes = 64 * 1024;

  LandingLayout(int size, int num_rings, int ring_depth, std::size_t ring_slot_bytes)
      : ring_depth_(static_cast<std::size_t>(ring_depth)),
        ring_slot_bytes_(ring_slot_bytes),
        ring_stride_(kHeaderBytes + round_up(ring_slot_bytes)),
        pair_offset_(static_cast<std::size_t>(num_rings) * ring_depth_ * ring_stride_),
        transfer_offset_(pair_offset_ + kPairSlots * (kHeaderBytes + kPairSlotBytes)),
        claim_offset_(transfer_offset_ + kTransferFragments * (kHeaderBytes + kTransferFragmentBytes)),
        source_stride_(claim_offset_ + round_up(static_cast<std::size_t>(num_rings) * ring_depth_ * kClaimBytes)),
        total_bytes_(source_stride_ * static_cast<std::size_t>(size)) {}

  /// The layout of a group; its rings have the depth that the bound needs.
  static LandingLayout of(int size, GroupOptions const& options) {
    bool const is_shallow = is_planted(mutant_from(options.mutant), Mutant::kShallowRing);
    return {size, options.num_channels, 2 * (options.max_lag_limit + 1) - (is_shallow ? 1 : 0), options.slot_bytes};
  }

  [[nodiscard]] std::size_t total_bytes() const { return total_bytes_; }
  /// Size of the part that each source writes to: a part of the segment, from `source * source_stride()` on.
  [[nodiscard]] std::size_t source_stride() const { return source_stride_; }
  [[nodiscard]] std::size_t ring_slot_bytes() const { return ring_slot_bytes_; }
  [[nodiscard]] std::uint64_t ring_depth() const { return ring_depth_; }

  /// `slot` is the operation number modulo the depth.
  [[nodiscard]] std::uint64_t ring_slot(int source, int ring, std::size_t slot) const {
    return base(source) + (static_cast<std::size_t>(ring) * ring_depth_ + slot) * ring_stride_;
  }
  /// Whose `value` is the number of an operation plus 1: who gets it, moves a block that was offered.
  [[nodiscard]] std::uint64_t ring_claim(int source, int ring, std::size_t slot) const {
    return base(source) + claim_offset_ + (static_cast<std::size_t>(ring) * ring_depth_ + slot) * kClaimBytes;
  }
  [[nodiscard]] std::uint64_t pair_slot(int source, std::uint64_t message) const {
    return base(source) + pair_offset_ + message % kPairSlots * (kHeaderBytes + kPairSlotBytes);
  }
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
