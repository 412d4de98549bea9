// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/jagged_moves.hpp"
#include "kernel_calls.hpp"
#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace headway::kernels {

using OptionalTensor = std::optional<at::Tensor>;

/// Exclusive prefix sum with the total at the end: (entries + 1) int64 for `lengths` of any shape.
/// Example: lengths 2 0 3 give offsets 0 2 2 5.
[[nodiscard]] at::Tensor offsets_of(at::Tensor const& lengths);

/// Offsets of the lengths of segments before and after a move, computed together; both are parts of one tensor. A move
/// (JaggedMove) copies each row of a source to the place that the layout of its output gives it. The source is
/// unchanged. The lengths before must add up to `num_rows`.
struct MovedOffsets {
  at::Tensor before, after;
};
[[nodiscard]] MovedOffsets offsets_of_both(at::Tensor const& before, at::Tensor const& after, std::int64_t num_rows);

/// Number of columns of a row of `values`: the product of all dimensions from `num_leading` on.
[[nodiscard]] std::int64_t num_columns(at::Tensor const& values, std::int64_t num_leading = 1);

/// `values` as contiguous tensors; copies those that are not contiguous. Rows are the first dimension.
/// @throws c10::ValueError that names `op` if there are no values, one has no dimension, or they differ in their device
/// or number of rows
[[nodiscard]] std::vector<at::Tensor> contiguous_rows(at::TensorList values, char const* op);

/// Uninitialised tensor like `values`, with the dimensions `leading` instead of the first `num_leading`.
[[nodiscard]] at::Tensor empty_rows_like(at::Tensor const& values, at::IntArrayRef leading,
                                         std::int64_t num_leading = 1);
[[nodiscard]] std::vector<at::Tensor> empty_rows_like(at::TensorList values, at::IntArrayRef leading,
                                                      std::int64_t num_leading = 1);

/// Moves the rows of several tensors in one call. Columns are the dimensions of `sources` from `num_leading` on. Rows
/// of `outs` without a source row (padding) are filled with zeros.
void move_tensors(JaggedMove const& move, at::TensorList sources, at::TensorList outs, std::int64_t num_leading = 1);
/// Same for one tensor. Rows of `out` without a source row are filled with `fill`.
void move_tensor(JaggedMove const& move, at::Tensor const& source, at::Tensor const& out, at::Scalar const& fill,
                 std::int64_t num_leading);

}  // namespace headway::kernels
