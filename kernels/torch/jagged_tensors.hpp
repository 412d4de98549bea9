// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/jagged_moves.hpp"
#include "kernel_calls.hpp"
#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <vector>

namespace headway::kernels {

using OptionalTensor = std::optional<at::Tensor>;

/// Exclusive prefix sum with the total at the end: (entries + 1) int64 for `lengths` of any shape.
/// Example: lengths 2 0 3 give offsets 0 2 2 5.
[[nodiscard]] at::Tensor offsets_of(at::Tensor const& lengths);

/// Offsets of lengths before and after a move, computed together; both are parts of one tensor. The lengths before must
/// add up to `num_rows`.
struct MovedOffsets {
  at::Tensor before, after;
};
[[nodiscard]] MovedOffsets offsets_of_both(at::Tensor const& before, at::Tensor const& after, std::int64_t num_rows);

/// Number of columns of a row of `values`: the product of all dimensions from `num_leading` on.
[[nodiscard]] std::int64_t num_columns(at::Tensor const& values, std::int64_t num_leading = 1);

/// Contiguous tensors with equally many rows in their first dimension.
/// @throws c10::ValueError if there are none or they are not on one device
[[nodiscard]] std::vector<at::Tensor> contiguous_rows(at::TensorList values, char const* op);

/// Uninitialised tensor like `values`, with the dimensions `leading` instead of the first `num_leading`.
[[nodiscard]] at::Tensor empty_rows_like(at::Tensor const& values, at::IntArrayRef leading,
                                         std::int64_t num_leading = 1);
[[nodiscard]] std::vector<at::Tensor> empty_rows_like(at::TensorList values, at::IntArrayRef leading,
                                                      std::int64_t num_leading = 1);

/// Moves the rows of several tensors in one call. Columns are the dimensions of `sources` from `num_leading` on.
void move_tensors(JaggedMove const& move, at::TensorList sources, at::TensorList outs, std::int64_t num_leading = 1);
/// Same for one tensor; rows that do not exist are filled with `fill`.
void move_tensor(JaggedMove const& move, at::Tensor const& source, at::Tensor const& out, at::Scalar const& fill,
                 std::int64_t num_leading);

}  // namespace headway::kernels
