#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Weights of the position bias for all distances of keys from queries in a block of scores, in shared memory.
template <int kRows, int kColumns>
struct PositionBand {
  static constexpr std::int32_t kDistances = kRows + kColumns - 1;

  float weights[kDistances];

  /// By all lanes of a warp, for others after a barrier.
  /// @param first distance; some of tokens behind a sequence are beyond the weights
  __device__ __forceinline__ void fill(HstuBias const& bias, std::int32_t first, float factor) {
    auto const* from = static_cast<float const*>(bias.position_weights);
    auto const last = static_cast<std::int32_t>(2 * bias.max_position_distance - 2);
    std::int32_t const place = last / 2 + first;
#pragma unroll
    for (auto i = static_cast<std::int32_t>(threadIdx.x % kWarpThreads); i < kDistances; i += kWarpThreads) {
      weights[i] = __ldg(from + min(max(place + i, 0), last)) * factor;
    }
    __syncwarp();
  }
};

/// The position bias of a thread's values. It depends on the distance of tokens alone, so that those of the second row
/// are those of the first one, 8 columns before.
/// @tparam kSign of the distance from key to query by columns: 1 if those are keys, -1 if those are queries
template <int kSign>
class PositionBias {
 public:
  PositionBias() = default;
  /// @param first that of the first row and column of the thread, in a PositionBand
  explicit __device__ __forceinline__ PositionBias(float const* first) : first_(first) { load(-8, before_); }

  /// Those of columns `column`, `column` + 1 in both rows of the thread, for each 8 columns one after the other.
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

}  // namespace headway::kernels
