// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums of copied rows on a device: the backward pass of copying jagged items (an item is the rows of one feature in one
// sample).
//
// Idea: a warp takes 64 vectors of the original rows (WarpRows). For each, a lane walks the CSR maps of features and
// samples (copied_items.hpp) and adds up the copies in ascending order. Nothing is scattered, so there are no atomics.
//
// Example: item 0 was copied to items 1 and 4. Row r of item 0 becomes the sum of row r of item 1, then of item 4.
//
// Complexity: each copy is read once and each sum written once.

#include "headway/kernels/jagged_sums.hpp"
#include "jagged/copied_items.hpp"
#include "jagged/cuda/element_vector.cuh"
#include "jagged/cuda/warp_rows.cuh"

namespace headway::kernels {

inline constexpr std::uint32_t kMaxSummedTensors = 64;

/// One of the tensors that a launch sums; each has warps of its own.
struct SummedTensor {
  CopiedRows rows;
  bool has_wide_vectors;  ///< Vectors of 16 bytes? Otherwise they have one element.
  std::uint32_t vectors_of_row;
  std::int64_t first_warp;  ///< First warp of the launch that works on this tensor.
};

struct SumCopiesArgs {
  CopiedItems items;
  std::uint32_t num_tensors;
  std::int64_t num_warps;
  SummedTensor tensors[kMaxSummedTensors] = {};
};

inline constexpr std::uint32_t kSummedVectorsOfLane = 2;

template <class Vector>
__device__ void sum_vectors(CopiedItems const& items, SummedTensor const& tensor, std::int64_t warp) {
  auto const* const copies = static_cast<Vector const*>(tensor.rows.copies);
  auto* const out = static_cast<Vector*>(tensor.rows.sums);
  std::int64_t const num_items = items.num_features * items.num_samples;
  WarpRows<kSummedVectorsOfLane> const rows{.packed = {.offsets = items.offsets, .num_items = num_items},
                                            .num_segments = static_cast<std::uint32_t>(num_items),
                                            .vectors_of_row = tensor.vectors_of_row,
                                            .num_rows = items.num_rows};
  rows.visit_warp(warp, [&](RowVector const& vector) {
    typename Vector::Sum sums[Vector::kNumElements] = {};
    for_each_copy(items, vector.segment, [&](std::int64_t copy) {
      std::int64_t const row = items.copied_offsets[copy] + vector.row_in_segment;
      expect_on_device(0 <= row && row < items.num_copied_rows, "rows are there");
      copies[row * tensor.vectors_of_row + vector.column].add_to(sums);
    });
    out[vector.row * tensor.vectors_of_row + vector.column] = Vector::nearest_to(sums);
  });
}

template <class Element>
__device__ void sum_elements(CopiedItems const& items, SummedTensor const& tensor, std::int64_t warp) {
  if (tensor.has_wide_vectors) {
    sum_vectors<ElementVector<Element, 16 / sizeof(Element)>>(items, tensor, warp);
  } else {
    sum_vectors<ElementVector<Element, 1>>(items, tensor, warp);
  }
}

/// Kernel: a warp per 64 vectors of a tensor. The warps of the tensors follow each other.
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock, 3)
    sum_copies_kernel(__grid_constant__ SumCopiesArgs const args) {
  std::int64_t const warp = std::int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp;
  if (warp >= args.num_warps) return;
  std::uint32_t tensor_index = 0;
  while (tensor_index + 1 < args.num_tensors && args.tensors[tensor_index + 1].first_warp <= warp) ++tensor_index;
  SummedTensor const& tensor = args.tensors[tensor_index];
  std::int64_t const own_warp = warp - tensor.first_warp;
  switch (tensor.rows.type) {
    case ElementType::kFloat64:
      return sum_elements<double>(args.items, tensor, own_warp);
    case ElementType::kFloat32:
      return sum_elements<float>(args.items, tensor, own_warp);
    case ElementType::kBfloat16:
      return sum_elements<Bfloat16>(args.items, tensor, own_warp);
    case ElementType::kFloat16:
      return sum_elements<Float16>(args.items, tensor, own_warp);
  }
}

/// Arguments of one launch for `tensors`, at most kMaxSummedTensors.
inline SumCopiesArgs sum_copies_args(CopiedItems const& items, std::span<CopiedRows const> tensors) {
  SumCopiesArgs args{.items = items, .num_tensors = static_cast<std::uint32_t>(tensors.size()), .num_warps = 0};
  for (std::uint32_t i = 0; i < args.num_tensors; ++i) {
    auto const& rows = tensors[i];
    with_element_vector(rows.type, rows.num_columns, {rows.copies, rows.sums}, [&]<class Vector>() {
      args.tensors[i] = {.rows = rows,
                         .has_wide_vectors = sizeof(Vector) == 16,
                         .vectors_of_row = static_cast<std::uint32_t>(rows.num_columns / Vector::kNumElements),
                         .first_warp = args.num_warps};
    });
    args.num_warps += WarpRows<kSummedVectorsOfLane>::num_warps(items.num_rows, args.tensors[i].vectors_of_row);
  }
  return args;
}

}  // namespace headway::kernels
