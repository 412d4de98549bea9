#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_mask.hpp"

#include <cstdint>

namespace headway::kernels {

/// Goes through the blocks of keys that some query of a range sees. By all lanes of a warp, which look at 32 blocks at
/// a time. The mask stays with the caller.
class VisibleKeyBlocks {
 public:
  __device__ __forceinline__ VisibleKeyBlocks(HstuSequenceMask const& mask, std::int32_t query_begin,
                                              std::int32_t query_end, std::int32_t block_keys)
      : mask_(mask), query_begin_(query_begin), query_end_(query_end), block_keys_(block_keys) {
    look_ahead();
  }

  [[nodiscard]] __device__ __forceinline__ bool is_done() const { return seen_ == 0; }
  [[nodiscard]] __device__ __forceinline__ std::int32_t block() const {
    return chunk_ + __ffs(static_cast<int>(seen_)) - 1;
  }
  /// Whether each query sees each key of the block, which then is no shorter than others.
  [[nodiscard]] __device__ __forceinline__ bool is_whole() const { return (whole_ & seen_ & -seen_) != 0; }

  __device__ __forceinline__ void advance() {
    seen_ &= seen_ - 1;
    if (seen_ != 0) return;
    chunk_ += kWarpThreads;
    look_ahead();
  }

 private:
  __device__ __forceinline__ void look_ahead() {
    for (; chunk_ * block_keys_ < mask_.num_keys; chunk_ += kWarpThreads) {
      std::int32_t const begin = (chunk_ + static_cast<std::int32_t>(threadIdx.x % kWarpThreads)) * block_keys_;
      std::int32_t const end = min(begin + block_keys_, mask_.num_keys);
      BlockVisibility const visibility =
          begin < end ? mask_.visibility(query_begin_, query_end_, begin, end) : BlockVisibility::kNone;
      seen_ = __ballot_sync(kAllLanes, visibility != BlockVisibility::kNone);
      whole_ = __ballot_sync(kAllLanes, visibility == BlockVisibility::kFull && end - begin == block_keys_);
      if (seen_ != 0) return;
    }
  }

  HstuSequenceMask const& mask_;
  std::int32_t query_begin_, query_end_, block_keys_, chunk_ = 0;
  unsigned seen_ = 0, whole_ = 0;
};

}  // namespace headway::kernels
