#pragma once

#include "headway/kernels/hstu_attention.hpp"
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

/// A weight of the position bias depends on the distance of tokens alone, so that of a thread's values those of the
/// second row are those of the first one, 8 columns before.
/// @tparam kSign of the distance from key to query by columns: 1 if those are keys, -1 if those are queries
template <int kSign>
class PositionBias {
 public:
  PositionBias() = default;
  /// @param distance of key from query in the first row, column 0 of the thread
  __device__ __forceinline__ PositionBias(HstuBias const& bias, std::int32_t distance)
      : weights_(static_cast<float const*>(bias.position_weights)),
        last_(static_cast<std::int32_t>(2 * bias.max_position_distance - 2)),
        place_(static_cast<std::int32_t>(bias.max_position_distance - 1) + distance) {
    load(-8, before_);
  }

  /// Those of columns `column`, `column` + 1 in both rows of the thread, for each 8 columns one after the other.
  __device__ __forceinline__ void move_to(std::int32_t column, float (&rows)[2][2]) {
    rows[1][0] = before_[0];
    rows[1][1] = before_[1];
    load(column, before_);
    rows[0][0] = before_[0];
    rows[0][1] = before_[1];
  }

 private:
  // Rows and columns beyond a sequence have a place as well, which may be beyond the weights.
  __device__ __forceinline__ void load(std::int32_t column, float (&pair)[2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) pair[e] = __ldg(weights_ + min(max(place_ + kSign * (column + e), 0), last_));
  }

  float const* weights_ = nullptr;
  std::int32_t last_ = 0, place_ = 0;
  float before_[2] = {};
};

/// SiLU(2 h) = 2 h / (1 + exp(-2 h)).
__device__ __forceinline__ float silu_of_twice(float h) { return fmaf(h, tanh_approximate(h), h); }

/// A weight SiLU(2 h) = h (1 + t) with t = tanh(h), and twice its derivative by 2 h, (1 + t) (1 + h (1 - t)); 0 where
/// off.
__device__ __forceinline__ void weight_and_slope(float h, bool is_on, float& weight, float& slope) {
  float const t = tanh_approximate(h);
  weight = is_on ? fmaf(h, t, h) : 0.0F;
  slope = is_on ? (1 + t) * fmaf(h, 1 - t, 1.0F) : 0.0F;
}

}  // namespace headway::kernels
