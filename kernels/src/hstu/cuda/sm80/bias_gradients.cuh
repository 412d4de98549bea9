// SPDX-License-Identifier: Apache-2.0

// Gradients of bias weights from dS of a block, which lies in shared memory as floats. The order of all sums is
// fixed: each block of threads has partial sums of its own, which sum_partials_kernel() adds up.
//
// Example: a block of 2 queries and 3 keys has 4 diagonals. Thread 0 has the pair (1, 0), thread 1 the pairs (0, 0)
// and (1, 1), thread 2 (0, 1) and (1, 2), thread 3 (0, 2). No two threads share a weight, so they need no atomics.
//
// Time buckets have no such order. There the lanes of a warp vote: buckets 3 3 5 3 take two rounds, one sum for
// bucket 3 over lanes 0, 1 and 3, and one for bucket 5.

#pragma once

#include "hstu/cuda/sm80/pairs.cuh"
#include "hstu/cuda/sm80/shape.cuh"

#include <cstdint>

namespace headway::kernels {

/// Adds dS to the gradients of position weights. All pairs at one distance lie on a diagonal; a thread adds up one
/// diagonal. All threads call it after a barrier.
/// @param ds rows of a tile of queries, Shape::kScratchPitch floats apart
/// @param factor of dS; ds lacks it
/// @param first_index index of the weight for the first query and key of the block
/// @param partial (num_weights) sums of this block of threads, in global memory
template <class Shape>
__device__ __forceinline__ void add_position_gradients(float const* ds, float factor, std::int64_t first_index,
                                                       std::int64_t num_weights, float* partial) {
  constexpr int kRows = Shape::kTileRows, kColumns = Shape::kBlockRows;
  for (int i = static_cast<int>(threadIdx.x); i < kRows + kColumns - 1; i += Shape::kThreads) {
    int const shift = i - (kRows - 1);
    float sum = 0;
    int const end = min(kRows, kColumns - shift);
    for (int row = max(0, -shift); row < end; ++row) sum += ds[row * Shape::kScratchPitch + row + shift];
    std::int64_t const index = first_index + shift;
    if (index >= 0 && index < num_weights) partial[index] += sum * factor;
  }
}

/// Sum over all lanes, in every lane.
[[nodiscard]] __device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int bits = 1; bits < kWarpThreads; bits *= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}

/// Adds the values of all lanes to the sums of their buckets. Times mostly ascend, so a warp meets few distinct
/// buckets; each distinct bucket costs one warp reduction.
__device__ __forceinline__ void add_by_bucket(float value, std::int32_t bucket, float* sums) {
  unsigned left = __ballot_sync(kAllLanes, value != 0);
  while (left != 0) {
    std::int32_t const chosen = __shfl_sync(kAllLanes, bucket, __ffs(static_cast<int>(left)) - 1);
    unsigned const members = __ballot_sync(kAllLanes, value != 0 && bucket == chosen);
    float const sum = sum_of_warp(bucket == chosen ? value : 0.0F);
    if (threadIdx.x % kWarpThreads == 0) sums[chosen] += sum;
    left &= ~members;
  }
}

/// Adds dS of a warp's 16 rows to `sums`, the warp's own gradients of time weights in shared memory.
template <class Shape>
__device__ __forceinline__ void add_time_gradients(float const* ds, float factor, TokenInfo const* queries,
                                                   TokenInfo const* keys, TimeTable const& times, float* sums) {
  for (int i = static_cast<int>(threadIdx.x % kWarpThreads); i < 16 * Shape::kBlockRows; i += kWarpThreads) {
    int const row = i / Shape::kBlockRows, column = i % Shape::kBlockRows;
    add_by_bucket(ds[row * Shape::kScratchPitch + column] * factor, time_bucket_of(times, queries[row], keys[column]),
                  sums);
  }
}

}  // namespace headway::kernels
