#pragma once

#include "hstu/cuda/position_bias.cuh"
#include "hstu/cuda/time_bias.cuh"

#include <cstdint>

namespace headway::kernels {

/// Takes the place of members that only a bias needs.
struct NoBias {};

/// Work left on scores before SiLU.
enum class ScoreBias : std::uint8_t {
  kNone,      ///< Multiply by alpha / 2.
  kPosition,  ///< Multiply by alpha / 2 and add the position bias.
  kAdded,     ///< Nothing: factor and bias are already in.
};

/// Replaces scores by half_alpha * score + position bias, in place. Bias weights have the factor already.
template <int kSign, int kScores>
__device__ __forceinline__ void add_position_bias(float (&scores)[kScores], float half_alpha,
                                                  PositionBias<kSign> position) {
#pragma unroll
  for (int group = 0; group < kScores / 4; ++group) {
    float bias[2][2];
    position.move_to(8 * group, bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[4 * group + i] = fmaf(scores[4 * group + i], half_alpha, bias[i / 2][i % 2]);
    }
  }
}

}  // namespace headway::kernels
