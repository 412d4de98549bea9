#pragma once

#include "hstu/cuda/position_bias.cuh"
#include "hstu/cuda/time_columns.cuh"

#include <cstdint>

namespace headway::kernels {

/// In the place of what only a bias needs.
struct NoBias {};

/// What is to be done to scores before weights are made of them.
enum class ScoreBias : std::uint8_t {
  kNone,      ///< They are multiplied by alpha / 2.
  kPosition,  ///< The position bias is added as well.
  kAdded,     ///< Nothing is left.
};

/// From scores to half_alpha * score + common bias, in place; weights of the bias have the factor already. The time
/// bias of groups that are not alike comes on top (TimeBias). By all lanes of a warp.
template <bool kHasPosition, bool kHasTime, int kSign, int kScores>
__device__ __forceinline__ void add_bias(float (&scores)[kScores], float half_alpha, PositionBias<kSign> position,
                                         TimeBias const& time) {
#pragma unroll
  for (int group = 0; group < kScores / 4; ++group) {
    float bias[2][2] = {};
    float const common = kHasTime ? time.common(group) : 0.0F;
    if constexpr (kHasPosition) position.move_to(8 * group, bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[4 * group + i];
      if constexpr (kHasPosition) {
        score = fmaf(score, half_alpha, bias[i / 2][i % 2]);
        if constexpr (kHasTime) score += common;
      } else {
        score = fmaf(score, half_alpha, common);
      }
    }
  }
}

}  // namespace headway::kernels
