// SPDX-License-Identifier: Apache-2.0

// Gradients of time weights from dS in registers: sums by bucket on the tensor cores, beside the consumer's wgmma.
// A time weight is the bias of one bucket of time differences (HstuBias). time_bias.cuh defines group, chunk and strip.

#pragma once

#include "cuda/mma.cuh"
#include "hstu/cuda/sm90/backward/state.cuh"

#include <cstdint>

namespace headway::kernels {

/// Second operand of mma_m16n8k16() with ones in one column and zeros elsewhere: the two elements that a lane holds.
template <class T>
[[nodiscard]] __device__ __forceinline__ std::uint32_t ones_in_column(std::uint32_t column) {
  return column == threadIdx.x % kWarpThreads / 4 ? pack<T>(1, 1) : 0;
}

/// Mask of two packed 16-bit values: all ones where the condition holds.
[[nodiscard]] __device__ __forceinline__ std::uint32_t mask_of(bool first, bool second) {
  return (first ? 0xffffu : 0) | (second ? 0xffff0000u : 0);
}

/// Sums an mma_m16n8k16() accumulator over all rows: columns 2t and 2t + 1, with t = lane % 4.
__device__ __forceinline__ void sum_of_rows(float const (&sums)[4], float (&of_columns)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    of_columns[i] = sums[i] + sums[i + 2];
#pragma unroll
    for (int bits = 4; bits < kWarpThreads; bits *= 2) of_columns[i] += __shfl_xor_sync(kAllLanes, of_columns[i], bits);
  }
}

/// Gradients of time weights that a consumer warp adds itself, while wgmma is in flight: it has dS in registers. It
/// takes the chunks (16 keys and 16 queries) that are not mixed: each group of 8 queries in them lies in one or two
/// buckets. Sm90BiasGradients takes the mixed ones.
///
/// Idea: dS (as first mma operand) times a matrix with ones in the column of a group's bucket sums dS by bucket. A
/// group in two buckets is split into pairs below and above the bound.
///
/// Example: a strip's first bucket is 5, a group lies in bucket 7: its ones are in column 2. All 8 columns of the
/// accumulator are buckets 5 to 12 (BlockTimeBias::kWindow).
template <class T, class Shape>
class Sm90TimeGradients {
 public:
  explicit __device__ __forceinline__ Sm90TimeGradients(Sm90BackwardParams const& params) : params_(params) {}

  [[nodiscard]] __device__ __forceinline__ bool is_wanted() const { return params_.grad_time_weights != nullptr; }
  /// Bits of the thread's pairs that are at or above their bound, by chunk; see StripBias::add_rises().
  [[nodiscard]] __device__ __forceinline__ std::uint8_t* are_above() const {
    return reinterpret_cast<std::uint8_t*>(own().are_above + lane());
  }

  __device__ __forceinline__ void begin() const { own().begin(); }
  /// @param factor factor of the tile's gradients
  __device__ __forceinline__ void begin_tile(float factor) const { own().begin_tile(factor); }
  __device__ __forceinline__ void end() const { own().end(params_.grad_time_weights); }

  /// Adds dS of a block of queries. All lanes of a warp call it.
  /// @param ds dS in the layout of the first mma operand
  template <int kSteps, class Bias>
  __device__ __forceinline__ void add(std::uint32_t const (&ds)[kSteps][4], Bias const& bias) const {
    static_assert(Bias::kChunks == kSteps && Bias::kChunkGroups == 2);
    typename Bias::Strip const strip = bias.strips[warp()];
    std::uint32_t const all_above = own().are_above[lane()];
    float sums[4] = {}, more_sums[4] = {};  // Two accumulators for two independent chains of mma.
#pragma unroll
    for (int chunk = 0; chunk < kSteps; ++chunk) {
      if ((strip.mixed >> 2 * chunk & 1) != 0) continue;
      std::uint32_t const offsets[] = {strip.offset_of(2 * chunk), strip.offset_of(2 * chunk + 1)};
      std::uint32_t const firsts[] = {ones_in_column<T>(offsets[0]), ones_in_column<T>(offsets[1])};
      if ((strip.alike >> 2 * chunk & 1) != 0) {
        mma_m16n8k16<T>(chunk % 2 == 0 ? sums : more_sums, ds[chunk], firsts);
        continue;
      }
      std::uint32_t const bits = all_above >> 8 * chunk;
      std::uint32_t below[4], above[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t const mask = mask_of((bits >> 2 * i & 1) != 0, (bits >> 2 * i & 2) != 0);
        above[i] = ds[chunk][i] & mask;
        below[i] = ds[chunk][i] & ~mask;
      }
      mma_m16n8k16<T>(sums, below, firsts);
      std::uint32_t const seconds[] = {ones_in_column<T>(offsets[0] + 1), ones_in_column<T>(offsets[1] + 1)};
      mma_m16n8k16<T>(more_sums, above, seconds);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += more_sums[i];
    float of_buckets[2];
    sum_of_rows(sums, of_buckets);
    auto const last_bucket = static_cast<std::int32_t>(params_.bias.num_time_bounds);
    own().add(strip.first_bucket, last_bucket, of_buckets, params_.grad_time_weights);
  }

 private:
  /// Index of this warp among the consumer warps.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t warp() { return threadIdx.x / kWarpThreads - 4; }
  [[nodiscard]] static __device__ __forceinline__ std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
  }
  [[nodiscard]] static __device__ __forceinline__ WarpTimeSums& own() { return own_time_sums<Shape>(); }

  Sm90BackwardParams const& params_;
};

}  // namespace headway::kernels
