// SPDX-License-Identifier: Apache-2.0

// Rows between global and shared memory in the sm_80 kernels. Aligned rows use cp.async, 16 bytes at a time; others
// are copied element by element, so any view of a tensor works.

#pragma once

#include "cuda/mma.cuh"
#include "hstu/cuda/sm80/plan.hpp"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Starts to load rows of a head into shared memory, at a pitch of kPitch elements. Rows from `num_rows` on and columns
/// beyond `dim` become 0. All kThreads threads call it. Data is visible after cp_async_wait() and a barrier.
template <int kTileRows, int kDim, int kPitch, int kThreads, class T>
__device__ __forceinline__ void load_rows(T* tile, Sm80Rows<void const*> const& rows, std::int64_t first_row,
                                          std::int32_t head, std::int32_t num_rows) {
  auto const thread = static_cast<int>(threadIdx.x);
  std::int64_t const stride = rows.heads.token_stride;
  T const* const first = static_cast<T const*>(rows.heads.data) + first_row * stride + head * rows.heads.head_stride;
  if (rows.is_aligned) {
    constexpr int kAtOnce = 16 / static_cast<int>(sizeof(T));
    for (int i = thread; i < kTileRows * (kDim / kAtOnce); i += kThreads) {
      int const row = i / (kDim / kAtOnce), column = i % (kDim / kAtOnce) * kAtOnce;
      int const left = row < num_rows ? min(max(rows.dim - column, 0), kAtOnce) : 0;
      // A copy of 0 bytes fills its 16 bytes with zeros, but its address must still be valid.
      void const* const from = left > 0 ? first + row * stride + column : rows.heads.data;
      cp_async(tile + row * kPitch + column, from, static_cast<std::uint32_t>(left) * sizeof(T));
    }
  } else {
    for (int i = thread; i < kTileRows * kDim; i += kThreads) {
      int const row = i / kDim, column = i % kDim;
      tile[row * kPitch + column] = row < num_rows && column < rows.dim ? first[row * stride + column] : T{};
    }
  }
}

/// Writes two columns of a row from one lane, as far as these columns exist.
template <class T>
__device__ __forceinline__ void store_pair(Sm80Rows<void*> const& rows, T* row, std::int32_t column, float first,
                                           float second) {
  if (rows.is_aligned && column + 1 < rows.dim) {
    if constexpr (std::is_same_v<T, float>) {
      *reinterpret_cast<float2*>(row + column) = make_float2(first, second);
    } else {
      *reinterpret_cast<std::uint32_t*>(row + column) = pack<T>(first, second);
    }
    return;
  }
  float const values[2] = {first, second};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (column + e >= rows.dim) return;
    row[column + e] = from_float<T>(values[e]);
  }
}

}  // namespace headway::kernels
