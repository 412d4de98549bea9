#pragma once

#include "headway/kernels/hstu_mask.hpp"
#include "hstu/cuda/fragment_place.cuh"

#include <cstdint>

namespace headway::kernels {

/// Which keys the two rows of a thread see. What rows behind the sequence see does not matter.
struct RowsVisibility {
  std::int32_t first_token, begin[2], length[2];

  __device__ __forceinline__ RowsVisibility(HstuSequenceMask const& mask, std::int32_t row)
      : first_token(mask.token_of(row)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      HstuKeyRange const range = mask.keys_seen_by(row + 8 * r);
      begin[r] = range.begin;
      length[r] = min(range.end, mask.num_keys) - range.begin;
    }
  }

  /// Keys behind the sequence are not seen by rows of it.
  [[nodiscard]] __device__ __forceinline__ bool sees(int r, std::int32_t key) const {
    bool const is_in_range = static_cast<std::uint32_t>(key - begin[r]) < static_cast<std::uint32_t>(length[r]);
    return is_in_range | (key == first_token + 8 * r);  // Without branches.
  }
};

/// SiLU(2 h) = 2 h / (1 + exp(-2 h)).
__device__ __forceinline__ float silu_of_twice(float h) { return fmaf(h, tanh_approximate(h), h); }

/// A weight SiLU(2 h) = h (1 + t) with t = tanh(h), and twice its derivative by 2 h, (1 + t) (1 + h (1 - t)); 0 where
/// off.
__device__ __forceinline__ void weight_and_slope(float h, bool is_on, float& weight, float& slope) {
  float const t = tanh_approximate(h);
  weight = is_on ? fmaf(h, t, h) : 0.0F;
  slope = is_on ? fmaf(1 + t, fmaf(-h, t, h), 1 + t) : 0.0F;
}

}  // namespace headway::kernels
