// SPDX-License-Identifier: Apache-2.0

// Position bias of a block of scores: a band of weights in shared memory, read along diagonals.

#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Position weights for all distances that occur in a block of scores, in shared memory.
///
/// Example: queries 128 to 255 and keys 0 to 127 have distances (key - query) from -255 to -1, so the band has 255
/// weights.
template <int kRows, int kColumns>
struct PositionBand {
  static constexpr std::int32_t kDistances = kRows + kColumns - 1;

  float weights[kDistances];

  /// Loads the weights. All lanes of a warp call it; other warps may read after a barrier.
  /// @param factor multiplies the weights
  /// @param first smallest distance. Distances of tokens behind a sequence may exceed the table; they are clamped.
  __device__ __forceinline__ void fill(HstuBias const& bias, std::int32_t first, float factor) {
    auto const* from = static_cast<float const*>(bias.position_weights);
    auto const last = static_cast<std::int32_t>(2 * bias.max_position_distance - 2);
    std::int32_t const index = last / 2 + first;
#pragma unroll
    for (auto i = static_cast<std::int32_t>(threadIdx.x % kWarpThreads); i < kDistances; i += kWarpThreads) {
      weights[i] = __ldg(from + min(max(index + i, 0), last)) * factor;
    }
    __syncwarp();
  }
};

/// Iterates over the position bias of a thread's accumulator elements. The bias depends on the distance alone, so the
/// second row (8 further) has the values that the first row had 8 columns before: one load serves two rows.
/// @tparam kSign 1 if columns are keys, -1 if columns are queries
template <int kSign>
class PositionBias {
 public:
  PositionBias() = default;
  /// @param first weight of the thread's first row and column in a PositionBand
  explicit __device__ __forceinline__ PositionBias(float const* first) : first_(first) { load(-8, before_); }

  /// Returns the bias of columns `column` and `column` + 1 in both rows. Call it for every 8 columns in ascending
  /// order.
  __device__ __forceinline__ void move_to(std::int32_t column, float (&rows)[2][2]) {
    rows[1][0] = before_[0];
    rows[1][1] = before_[1];
    load(column, before_);
    rows[0][0] = before_[0];
    rows[0][1] = before_[1];
  }

 private:
  __device__ __forceinline__ void load(std::int32_t column, float (&pair)[2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) pair[e] = first_[kSign * (column + e)];
  }

  float const* first_ = nullptr;
  float before_[2] = {};
};

/// Takes the place of members that only a bias needs.
struct NoBias {};

/// Work left on scores before SiLU.
enum class ScoreBias : std::uint8_t {
  kNone,      ///< Multiply by alpha / 2.
  kPosition,  ///< Multiply by alpha / 2 and add the position bias.
  kAdded,     ///< Nothing: factor and bias are already in.
};

/// Replaces scores by half_alpha * score + position bias, in place. Bias weights have the factor already.
template <int kSign, int kAccS>
__device__ __forceinline__ void add_position_bias(float (&s)[kAccS], float half_alpha, PositionBias<kSign> position) {
#pragma unroll
  for (int group = 0; group < kAccS / 4; ++group) {
    float bias[2][2];
    position.move_to(8 * group, bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[4 * group + i] = fmaf(s[4 * group + i], half_alpha, bias[i / 2][i % 2]);
    }
  }
}

}  // namespace headway::kernels
