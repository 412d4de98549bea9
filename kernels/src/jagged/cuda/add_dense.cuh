// SPDX-License-Identifier: Apache-2.0

// Adds dense rows (positional embeddings) to jagged rows on a device; the CPU version is cpu/add_dense.cpp. Work is
// cut by vectors of packed rows (warp_rows.cuh), so samples of any length keep all lanes busy.

#pragma once

#include "headway/kernels/jagged_sums.hpp"
#include "jagged/cuda/element_vector.cuh"
#include "jagged/cuda/warp_rows.cuh"

namespace headway::kernels {

/// Kernel arguments; vectors are ElementVector.
template <class Vector>
struct AddDenseArgs {
  Segments samples;
  std::uint32_t num_samples;
  std::int64_t num_rows, num_warps, max_length;
  std::uint32_t vectors_of_row;
  Vector const* values;  ///< (num_rows, vectors_of_row)
  Vector const* dense;   ///< (num_samples, max_length, vectors_of_row)
  Vector* out;           ///< (num_rows, vectors_of_row)
};

inline constexpr std::uint32_t kAddedVectorsOfLane = 2;

/// Kernel: a warp adds 64 vectors of rows. Neighbouring lanes have neighbouring vectors (WarpRows).
template <class Vector>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    add_dense_kernel(__grid_constant__ AddDenseArgs<Vector> const args) {
  std::int64_t const warp = std::int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp;
  if (warp >= args.num_warps) return;
  WarpRows<kAddedVectorsOfLane> const rows{.packed = args.samples,
                                           .num_segments = args.num_samples,
                                           .vectors_of_row = args.vectors_of_row,
                                           .num_rows = args.num_rows};
  rows.visit_warp(warp, [&](RowVector const& vector) {
    std::int64_t const at = vector.row * args.vectors_of_row + vector.column;
    Vector const value = args.values[at];
    if (vector.row_in_segment >= args.max_length) {
      args.out[at] = value;
      return;
    }
    std::int64_t const dense_row = vector.segment * args.max_length + vector.row_in_segment;
    typename Vector::Sum sums[Vector::kNumElements] = {};
    value.add_to(sums);
    args.dense[dense_row * args.vectors_of_row + vector.column].add_to(sums);
    args.out[at] = Vector::nearest_to(sums);
  });
}

template <class Vector>
AddDenseArgs<Vector> add_dense_args(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) {
  auto const vectors_of_row = static_cast<std::uint32_t>(rows.num_columns / Vector::kNumElements);
  return {.samples = {.offsets = rows.offsets, .num_items = rows.num_samples},
          .num_samples = static_cast<std::uint32_t>(rows.num_samples),
          .num_rows = rows.num_rows,
          .num_warps = WarpRows<kAddedVectorsOfLane>::num_warps(rows.num_rows, vectors_of_row),
          .max_length = max_length,
          .vectors_of_row = vectors_of_row,
          .values = static_cast<Vector const*>(rows.values),
          .dense = static_cast<Vector const*>(dense),
          .out = static_cast<Vector*>(out)};
}

}  // namespace headway::kernels
