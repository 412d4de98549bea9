#pragma once

#include "headway/kernels/jagged_moves.hpp"
#include "kernel_calls.hpp"
#include "list_arguments.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <vector>

namespace headway::kernels {

using OptionalTensor = std::optional<at::Tensor>;

/// (entries + 1) int64: 0 and the sums of the first one, two, ... of all `lengths`, whatever their shape.
[[nodiscard]] at::Tensor offsets_of(at::Tensor const& lengths);

/// Offsets of lengths before and after they were moved, of which those before add up to `num_rows`: as offsets_of(),
/// but together, and two parts of one tensor.
struct MovedOffsets {
  at::Tensor before, after;
};
[[nodiscard]] MovedOffsets offsets_of_both(at::Tensor const& before, at::Tensor const& after, std::int64_t num_rows);

/// Columns of a row of `values` (rows, ...), the product of all dimensions behind the first `num_leading`.
[[nodiscard]] std::int64_t num_columns(at::Tensor const& values, std::int64_t num_leading = 1);

/// Tensors whose first dimension is rows, all equally many of them; contiguous.
/// @throws c10::ValueError if there are none or they are not on one device
[[nodiscard]] std::vector<at::Tensor> contiguous_rows(at::TensorList values, char const* op);

/// Like `values`, with `leading` dimensions in the place of the first `num_leading`.
[[nodiscard]] at::Tensor empty_rows_like(at::Tensor const& values, at::IntArrayRef leading,
                                         std::int64_t num_leading = 1);
[[nodiscard]] std::vector<at::Tensor> empty_rows_like(at::TensorList values, at::IntArrayRef leading,
                                                      std::int64_t num_leading = 1);

/// Moves the rows of tensors at once; rows have the columns behind the first `num_leading` dimensions of `sources`.
void move_tensors(JaggedMove const& move, at::TensorList sources, at::TensorList outs, std::int64_t num_leading = 1);
/// The same of one, whose rows that are not there are filled with `fill`.
void move_tensor(JaggedMove const& move, at::Tensor const& source, at::Tensor const& out, at::Scalar const& fill,
                 std::int64_t num_leading);

}  // namespace headway::kernels
