// SPDX-License-Identifier: Apache-2.0

// Rows of floats, moved in vectors of 4 or 16 bytes, and weighted sums of rows.
//
// for_each_term() is the inner loop of the sums. A naive loop reads an index, then the row that it names, then the
// next index: two latencies per term. Here the lanes of a row read many indices at once, share them by shuffles, and
// keep kInFlight row loads under way. Terms are still used in order, so the sum does not depend on the number of
// lanes.

#pragma once

#include "cuda/runtime/launch.cuh"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace headway::embedding {

/// A term of a sum: weight times a row of values.
struct Term {
  std::uint32_t row = 0;
  float weight = 1;
};

/// A matrix in device memory whose rows consist of `num_vectors` elements of type float or float4.
template <class Vector>
struct VectorRows {
  Vector* data;
  std::uint32_t num_vectors;

  [[nodiscard]] __device__ Vector* at(std::uint64_t row, std::uint32_t column) const {
    return data + row * num_vectors + column;
  }
};

/// View of rows of `dim` floats as rows of `Vector`.
template <class Vector>
VectorRows<Vector const> rows_of(float const* data, std::size_t dim) {
  return {reinterpret_cast<Vector const*>(data), static_cast<std::uint32_t>(dim * sizeof(float) / sizeof(Vector))};
}

template <class Vector>
VectorRows<Vector> rows_of(float* data, std::size_t dim) {
  return {reinterpret_cast<Vector*>(data), static_cast<std::uint32_t>(dim * sizeof(float) / sizeof(Vector))};
}

/// Calls `call.operator()<Vector>()`. Vector is float4 if `dim` is a multiple of 4 and all `rows` are 16-byte aligned,
/// else float.
template <class Call>
void with_widest_vector(std::size_t dim, std::initializer_list<float const*> rows, Call const& call) {
  bool const are_aligned = std::ranges::all_of(
      rows, [](float const* row) { return reinterpret_cast<std::uintptr_t>(row) % sizeof(float4) == 0; });
  if (dim % 4 == 0 && are_aligned) {
    call.template operator()<float4>();
  } else {
    call.template operator()<float>();
  }
}

/// Launch shape for rows. threads.x lanes (a power of two, at most 32) share a row, one vector each; threads.y rows per
/// block. Rows wider than that take several blocks (blocks.y).
struct RowGrid {
  dim3 blocks, threads;

  static unsigned lanes(std::uint32_t num_vectors) { return std::min(32U, std::bit_ceil(num_vectors)); }

  RowGrid(std::uint64_t num_rows, std::uint32_t num_vectors, unsigned rows_per_thread = 1)
      : threads(lanes(num_vectors), kBlockThreads / lanes(num_vectors)) {
    std::uint64_t const rows_per_block = std::uint64_t{threads.y} * rows_per_thread;
    blocks = dim3(static_cast<unsigned>((num_rows + rows_per_block - 1) / rows_per_block),
                  (num_vectors + threads.x - 1) / threads.x);
  }
};

/// Column of this thread in a RowGrid, in vectors. May be beyond the row.
__device__ inline std::uint32_t column_of_thread() { return blockIdx.y * blockDim.x + threadIdx.x; }

/// Row of this thread in a RowGrid with one row per thread. May be beyond the last row.
__device__ inline std::uint32_t row_of_thread() { return blockIdx.x * blockDim.y + threadIdx.y; }

__device__ inline void add_weighted(float& sum, float value, float weight) { sum += weight * value; }

__device__ inline void add_weighted(float4& sum, float4 value, float weight) {
  add_weighted(sum.x, value.x, weight);
  add_weighted(sum.y, value.y, weight);
  add_weighted(sum.z, value.z, weight);
  add_weighted(sum.w, value.w, weight);
}

/// Calls `take(position, value, weight)` for one column of the terms [begin, end), in order. All threads that have a
/// column of the row must call it: each looks up some terms and shares them by shuffles. The loads of `kInFlight`
/// vectors overlap.
/// @param term_of (position) -> Term
template <std::uint32_t kInFlight, class Vector, class TermOf, class Take>
__device__ void for_each_term(std::uint32_t begin, std::uint32_t end, VectorRows<Vector const> rows,
                              std::uint32_t column, TermOf const& term_of, Take const& take) {
  std::uint32_t const num_threads = min(blockDim.x, rows.num_vectors - blockIdx.y * blockDim.x);
  unsigned const first_lane = threadIdx.y * blockDim.x % 32;
  // The mask names only lanes that have a column: the others have returned and cannot take part in shuffles.
  unsigned const lanes = 0xffffffffU >> (32 - num_threads) << first_lane;
  for (std::uint32_t batch = begin; batch < end; batch += num_threads) {
    Term const own = term_of(min(batch + threadIdx.x, end - 1));
    std::uint32_t const batch_end = min(batch + num_threads, end);
    for (std::uint32_t first = batch; first < batch_end; first += kInFlight) {
      Term terms[kInFlight];
      Vector values[kInFlight];
      // Reads the last term again beyond the end: without a branch, no load waits for an earlier one.
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        auto const lane = static_cast<int>(min(first + i, batch_end - 1) - batch);
        auto const width = static_cast<int>(blockDim.x);
        terms[i] = {__shfl_sync(lanes, own.row, lane, width), __shfl_sync(lanes, own.weight, lane, width)};
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        if (first + i < batch_end) values[i] = __ldg(rows.at(terms[i].row, column));
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        if (first + i < batch_end) take(first + i, values[i], terms[i].weight);
      }
    }
  }
}

}  // namespace headway::embedding
