#pragma once

#include "cuda/launch.cuh"
#include "cuda/term.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace headway::embedding {

/// Rows of as many vectors (float, or float4) each, in memory of a device.
template <class Vector>
struct VectorRows {
  Vector* data;
  std::uint32_t num_vectors;

  [[nodiscard]] __device__ Vector* at(std::uint64_t row, std::uint32_t column) const {
    return data + row * num_vectors + column;
  }
};

template <class Vector>
VectorRows<Vector const> rows_of(float const* data, std::size_t dim) {
  return {reinterpret_cast<Vector const*>(data), static_cast<std::uint32_t>(dim * sizeof(float) / sizeof(Vector))};
}

template <class Vector>
VectorRows<Vector> rows_of(float* data, std::size_t dim) {
  return {reinterpret_cast<Vector*>(data), static_cast<std::uint32_t>(dim * sizeof(float) / sizeof(Vector))};
}

/// Calls `call.operator()<Vector>()` with the widest vector that rows of `dim` floats at these addresses are made of.
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

/// Threads for rows: those of a row (x, at most a warp, a power of two) have a vector of it each, and rows wider than
/// that have several blocks (y of the grid). A block has several rows (y).
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

/// The column of a row that this thread of a RowGrid has, in vectors.
__device__ inline std::uint32_t column_of_thread() { return blockIdx.y * blockDim.x + threadIdx.x; }

/// The row that it has, where it has one.
__device__ inline std::uint32_t row_of_thread() { return blockIdx.x * blockDim.y + threadIdx.y; }

__device__ inline void add_weighted(float& sum, float value, float weight) { sum += weight * value; }

__device__ inline void add_weighted(float4& sum, float4 value, float weight) {
  add_weighted(sum.x, value.x, weight);
  add_weighted(sum.y, value.y, weight);
  add_weighted(sum.z, value.z, weight);
  add_weighted(sum.w, value.w, weight);
}

/// Calls `take(position, value, weight)` for a column of the terms from `begin` to `end`, in order. By all threads that
/// have a column of the row: each looks for terms of its own, which all are then told, and the loads of `kInFlight`
/// vectors are under way at a time.
/// @param term_of (position) -> Term
template <std::uint32_t kInFlight, class Vector, class TermOf, class Take>
__device__ void for_each_term(std::uint32_t begin, std::uint32_t end, VectorRows<Vector const> rows,
                              std::uint32_t column, TermOf const& term_of, Take const& take) {
  std::uint32_t const num_threads = min(blockDim.x, rows.num_vectors - blockIdx.y * blockDim.x);
  unsigned const first_lane = threadIdx.y * blockDim.x % 32;
  unsigned const lanes = 0xffffffffU >> (32 - num_threads) << first_lane;
  for (std::uint32_t batch = begin; batch < end; batch += num_threads) {
    Term const own = term_of(min(batch + threadIdx.x, end - 1));
    std::uint32_t const batch_end = min(batch + num_threads, end);
    for (std::uint32_t first = batch; first < batch_end; first += kInFlight) {
      Term terms[kInFlight];
      Vector values[kInFlight];
      // Beyond the end a term is read again: without a branch no load waits for one before.
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
