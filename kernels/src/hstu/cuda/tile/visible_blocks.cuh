// SPDX-License-Identifier: Apache-2.0

// Blocks of keys that a tile of queries has to visit, or blocks of queries for a tile of keys. All lanes of a warp test
// one block each, and ballots keep the results as bit masks.

#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_mask.hpp"

#include <cstdint>

namespace headway::kernels {

/// Visibility of ranges of keys to queries [query_begin, query_end).
struct KeysSeenBy {
  HstuSequenceMask const& mask;
  std::int32_t query_begin, query_end;

  [[nodiscard]] __device__ __forceinline__ std::int32_t size() const { return mask.num_keys; }
  [[nodiscard]] __device__ __forceinline__ BlockVisibility operator()(std::int32_t begin, std::int32_t end) const {
    return mask.visibility(query_begin, query_end, begin, end);
  }
};

/// Visibility of keys [key_begin, key_end) to ranges of queries.
struct QueriesThatSee {
  HstuSequenceMask const& mask;
  std::int32_t key_begin, key_end;

  [[nodiscard]] __device__ __forceinline__ std::int32_t size() const { return mask.num_queries; }
  [[nodiscard]] __device__ __forceinline__ BlockVisibility operator()(std::int32_t begin, std::int32_t end) const {
    return mask.visibility(begin, end, key_begin, key_end);
  }
};

/// Iterates over the blocks of a range that are visible (KeysSeenBy) or that see something (QueriesThatSee). All lanes
/// of a warp call it; it tests 32 blocks at once. The mask must outlive it.
///
/// Example: causal, a window of 256 keys, blocks of 64 keys: for queries 1024 to 1087 it yields the 5 blocks 12 to 16.
template <class Other, int kBlock>
class VisibleBlocks {
 public:
  explicit __device__ __forceinline__ VisibleBlocks(Other const& other) : other_(other) { look_ahead(); }

  [[nodiscard]] __device__ __forceinline__ bool is_done() const { return seen_ == 0; }
  [[nodiscard]] __device__ __forceinline__ std::int32_t block() const {
    return chunk_ + __ffs(static_cast<int>(seen_)) - 1;
  }
  /// Are all pairs of the block visible, and has it kBlock rows?
  [[nodiscard]] __device__ __forceinline__ bool is_whole() const { return (whole_ & seen_ & -seen_) != 0; }

  __device__ __forceinline__ void advance() {
    seen_ &= seen_ - 1;
    if (seen_ != 0) return;
    chunk_ += kWarpThreads;
    look_ahead();
  }

 private:
  /// Advances to the next 32 blocks of which at least one is visible.
  __device__ __forceinline__ void look_ahead() {
    for (; chunk_ * kBlock < other_.size(); chunk_ += kWarpThreads) {
      std::int32_t const begin = (chunk_ + static_cast<std::int32_t>(threadIdx.x % kWarpThreads)) * kBlock;
      std::int32_t const end = min(begin + kBlock, other_.size());
      BlockVisibility const visibility = begin < end ? other_(begin, end) : BlockVisibility::kNone;
      seen_ = __ballot_sync(kAllLanes, visibility != BlockVisibility::kNone);
      whole_ = __ballot_sync(kAllLanes, visibility == BlockVisibility::kFull && end - begin == kBlock);
      if (seen_ != 0) return;
    }
  }

  Other other_;
  std::int32_t chunk_ = 0;
  unsigned seen_ = 0, whole_ = 0;
};

}  // namespace headway::kernels
