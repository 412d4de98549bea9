// SPDX-License-Identifier: Apache-2.0

// Sums of columns over the partial results of blocks: the second stage of gradients that sum over rows (weight, bias).
//
// The first kernel leaves one partial sum per block and column. Adding them by atomics would make the order, and so
// the rounding, depend on timing. Here a block of threads has 32 columns; 32 groups of threads take every 32nd
// partial, and the groups' sums are added in order.
//
// Example: 264 partials. Group 0 adds partials 0, 32, 64, ..., 256 (nine of them), group 8 adds 8, 40, ..., 232
// (eight). Neighbouring lanes read neighbouring columns, so each read of a warp is one line of 128 bytes for float32.
// Complexity: partials / 32 additions per thread, then 31 by one warp.

#pragma once

#include "cuda/device.cuh"
#include "elements.hpp"

#include <cstdint>

namespace headway::kernels {

/// Arguments for adding up partial sums of columns. A block of threads has 32 columns.
template <class RealType, class Out>
struct ColumnSums {
  static constexpr int kGroups = 32;

  RealType const* partials;  ///< (num_partials, 2 or 1, num_columns)
  /// `partial_stride`: distance between partials, in elements.
  std::int64_t num_partials, partial_stride, num_columns;
  Out* outs[2];  ///< (num_columns) for each sum of a partial; null if not wanted.
};

/// Kernel: outs[y][column]. Group g of threads adds up partials g, g + 32, ...; then the sums of the groups are added
/// in order. The order is fixed, so results are bitwise reproducible.
template <class RealType, class Out>
__global__ void __launch_bounds__(1024) add_column_sums_kernel(__grid_constant__ ColumnSums<RealType, Out> const args) {
  constexpr int kGroups = ColumnSums<RealType, Out>::kGroups;
  __shared__ RealType sums[kGroups][kWarpThreads];
  Out* const out = args.outs[blockIdx.y];
  if (out == nullptr) return;
  int const lane = static_cast<int>(threadIdx.x) % kWarpThreads, group = static_cast<int>(threadIdx.x) / kWarpThreads;
  std::int64_t const column = std::int64_t{blockIdx.x} * kWarpThreads + lane;
  RealType sum = 0;
  if (column < args.num_columns) {
    RealType const* const partials = args.partials + blockIdx.y * args.num_columns + column;
#pragma unroll 4
    for (std::int64_t i = group; i < args.num_partials; i += kGroups) sum += partials[i * args.partial_stride];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group > 0 || column >= args.num_columns) return;
  for (int other = 1; other < kGroups; ++other) sum += sums[other][lane];
  out[column] = nearest<Out>(sum);
}

}  // namespace headway::kernels
