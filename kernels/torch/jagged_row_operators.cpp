// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.jagged_concat, jagged_split, jagged_to_padded, padded_to_jagged, jagged_add_dense, jagged_reduce
// and jagged_expand: rows of samples at offsets. python/headway/ops documents the arguments.
//
// Example: two jagged tensors with lengths 1 2 and 2 0. Their concatenation has, per sample, the rows of the first
// tensor, then those of the second: joined lengths 1 2 | 2 0, offsets 0 1 3 5 5. Tensor 0 is placed at entries 0 and
// 2 of these offsets, tensor 1 at entries 1 and 3.

#include "headway/kernels/jagged_sums.hpp"
#include "jagged_tensors.hpp"
#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <utility>

namespace headway::kernels {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Jagged tensor of B samples, checked.
struct JaggedTensor {
  at::Tensor values, offsets;  ///< (rows, ...), contiguous; (B + 1)
  std::int64_t num_samples, num_rows;

  JaggedTensor(at::Tensor const& rows, at::Tensor const& offsets_of_samples, char const* op)
      : values(contiguous_rows(rows, op)[0]),
        offsets(offsets_of_samples),
        num_samples(offsets.numel() - 1),
        num_rows(values.size(0)) {
    list_of(offsets, "offsets", values.device());
    TORCH_CHECK_VALUE(num_samples >= 0, op, ": offsets must have an entry more than there are samples");
    if (!offsets.is_cpu()) return;
    auto const* const entries = offsets.const_data_ptr<std::int64_t>();
    TORCH_CHECK_VALUE(entries[0] == 0 && entries[num_samples] == num_rows, op, ": offsets go from ", entries[0], " to ",
                      entries[num_samples], ", and must go from 0 to the ", num_rows, " rows");
  }
  [[nodiscard]] Segments segments() const {
    return {.offsets = offsets.const_data_ptr<std::int64_t>(), .num_items = num_samples};
  }
  [[nodiscard]] JaggedRows rows(char const* op) const {
    return {.type = element_type(values, op, "values"),
            .num_samples = num_samples,
            .num_rows = num_rows,
            .num_columns = num_columns(values),
            .offsets = offsets.const_data_ptr<std::int64_t>(),
            .values = values.const_data_ptr()};
  }
};

/// Offsets of the join of K jagged tensors: (B * K + 1). Sample b of the join has the rows of sample b of all tensors,
/// one tensor after the other.
at::Tensor joined_offsets(at::TensorList offsets, at::Device device, char const* op) {
  TORCH_CHECK_VALUE(!offsets.empty(), op, ": there are no offsets");
  for (auto const& each : offsets) {
    TORCH_CHECK_VALUE(each.numel() >= 1, op, ": offsets must have an entry more than there are samples");
    list_of(each, "offsets", device, offsets[0].numel());
  }
  return offsets_of(at::stack(offsets, 1).diff(1, 0));
}

/// Move between jagged tensor `index` of K (the packed side, without gaps) and its part of the join (the placed side).
JaggedMove join_move(JaggedMove::Direction direction, at::Tensor const& offsets, std::int64_t num_rows,
                     at::Tensor const& joined, std::int64_t num_joined_rows, std::size_t index) {
  std::int64_t const num_samples = offsets.numel() - 1;
  std::int64_t const num_parts = num_samples == 0 ? 0 : (joined.numel() - 1) / num_samples;
  auto const shift = static_cast<std::int64_t>(index);
  return {.num_segments = num_samples,
          .packed = {.offsets = offsets.const_data_ptr<std::int64_t>(), .num_items = num_samples},
          .placed = {.offsets = joined.const_data_ptr<std::int64_t>() + shift,
                     .num_items = joined.numel() - 1 - shift,
                     .order = SegmentOrder::every(num_parts)},
          .num_packed_rows = num_rows,
          .num_placed_rows = num_joined_rows,
          .direction = direction};
}

/// Joins K jagged tensors sample by sample. Its backward pass is jagged_split().
at::Tensor jagged_concat(at::TensorList values, at::TensorList offsets) {
  TORCH_CHECK_VALUE(!values.empty() && values.size() == offsets.size(), "jagged_concat: there are ", values.size(),
                    " values and ", offsets.size(), " offsets, and must be equally many, at least one");
  std::int64_t num_rows = 0;
  for (auto const& each : values) {
    TORCH_CHECK_VALUE(each.dim() >= 1 && each.sizes().slice(1) == values[0].sizes().slice(1) &&
                          each.scalar_type() == values[0].scalar_type() && each.device() == values[0].device(),
                      "jagged_concat: values must differ in their rows alone, not be ", values[0].scalar_type(), " ",
                      values[0].sizes(), " on ", values[0].device(), " and ", each.scalar_type(), " ", each.sizes(),
                      " on ", each.device());
    num_rows += each.size(0);
  }
  at::Tensor const joined = joined_offsets(offsets, values[0].device(), "jagged_concat");
  at::Tensor const out = empty_rows_like(values[0], {num_rows});
  for (std::size_t i = 0; i < values.size(); ++i) {
    move_tensors(join_move(JaggedMove::Direction::kScatter, offsets[i], values[i].size(0), joined, num_rows, i),
                 values[i].contiguous(), out);
  }
  return out;
}

/// Inverse of jagged_concat(). The caller gives the number of rows of each part, so that nothing waits for offsets on
/// a device. Example: joined rows a0 b0 b1 | b2 with offsets 0 1 1 and 0 2 3 give a0 and b0 b1 b2.
Tensors jagged_split(at::Tensor const& values, at::TensorList offsets, at::IntArrayRef num_rows) {
  TORCH_CHECK_VALUE(offsets.size() == num_rows.size(), "jagged_split: there are ", offsets.size(), " offsets and ",
                    num_rows.size(), " numbers of rows");
  at::Tensor const rows = contiguous_rows(values, "jagged_split")[0];
  std::int64_t num_given = 0;
  for (auto const each : num_rows) {
    // Subtracting from the remaining rows avoids an overflow, which could produce the right sum by accident.
    TORCH_CHECK_VALUE(0 <= each && each <= rows.size(0) - num_given, "jagged_split: numbers of rows are ", num_rows,
                      ", must be from 0 and add up to the ", rows.size(0), " rows that there are");
    num_given += each;
  }
  TORCH_CHECK_VALUE(num_given == rows.size(0), "jagged_split: numbers of rows add up to ", num_given,
                    ", and there are ", rows.size(0), " rows");
  at::Tensor const joined = joined_offsets(offsets, rows.device(), "jagged_split");
  Tensors outs;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    outs.push_back(empty_rows_like(rows, {num_rows[i]}));
    move_tensors(join_move(JaggedMove::Direction::kGather, offsets[i], num_rows[i], joined, rows.size(0), i), rows,
                 outs.back());
  }
  return outs;
}

/// Segments of equally many rows.
Segments padded_segments(std::int64_t num_samples, std::int64_t max_length) {
  return {.rows_each = max_length, .num_items = num_samples};
}

/// (rows, ...) to (samples, max_length, ...). Longer samples are cut, shorter ones filled with `padding`. Example:
/// lengths 1 3, max_length 2: rows a0 b0 b1 b2 become [a0 pad] [b0 b1]. The output is the packed side of the move,
/// since a gather fills rows that are missing on the placed side.
at::Tensor jagged_to_padded(at::Tensor const& values, at::Tensor const& offsets, std::int64_t max_length,
                            at::Scalar const& padding) {
  JaggedTensor const jagged(values, offsets, "jagged_to_padded");
  TORCH_CHECK_VALUE(max_length >= 0, "jagged_to_padded: max_length must be from 0, and is ", max_length);
  at::Tensor const out = empty_rows_like(jagged.values, {jagged.num_samples, max_length});
  move_tensor({.num_segments = jagged.num_samples,
               .packed = padded_segments(jagged.num_samples, max_length),
               .placed = jagged.segments(),
               .num_packed_rows = jagged.num_samples * max_length,
               .num_placed_rows = jagged.num_rows},
              jagged.values, out, padding, 1);
  return out;
}

/// Inverse of jagged_to_padded(). Rows that were cut there come back as 0. `num_rows` is offsets[B], given by the
/// caller so that nothing waits for a device.
at::Tensor padded_to_jagged(at::Tensor const& padded, at::Tensor const& offsets, std::int64_t num_rows) {
  TORCH_CHECK_VALUE(padded.dim() >= 2 && padded.size(0) == offsets.numel() - 1, "padded_to_jagged: padded must be (",
                    offsets.numel() - 1, " samples, max_length, ...), not ", padded.sizes());
  list_of(offsets, "padded_to_jagged: offsets", padded.device());
  at::Tensor const rows = padded.contiguous();
  std::int64_t const num_samples = rows.size(0), max_length = rows.size(1);
  at::Tensor const out = empty_rows_like(rows, {num_rows}, 2);
  move_tensor({.num_segments = num_samples,
               .packed = {.offsets = offsets.const_data_ptr<std::int64_t>(), .num_items = num_samples},
               .placed = padded_segments(num_samples, max_length),
               .num_packed_rows = num_rows,
               .num_placed_rows = num_samples * max_length},
              rows, out, 0, 2);
  return out;
}

/// Repeats row b of a dense tensor for each row of sample b. Example: rows p q with lengths 2 1 become p p q. It is
/// the backward pass of a sum over samples.
at::Tensor jagged_expand(at::Tensor const& rows, at::Tensor const& offsets, std::int64_t num_rows) {
  TORCH_CHECK_VALUE(rows.dim() >= 1 && rows.size(0) == offsets.numel() - 1, "jagged_expand: rows must be (",
                    offsets.numel() - 1, " samples, ...), not ", rows.sizes());
  list_of(offsets, "jagged_expand: offsets", rows.device());
  at::Tensor const sources = rows.contiguous();
  std::int64_t const num_samples = sources.size(0);
  at::Tensor const out = empty_rows_like(sources, {num_rows});
  move_tensors({.num_segments = num_samples,
                .packed = {.offsets = offsets.const_data_ptr<std::int64_t>(), .num_items = num_samples},
                .placed = {.num_items = num_samples},
                .num_packed_rows = num_rows,
                .num_placed_rows = num_samples,
                .placed_row = JaggedMove::PlacedRow::kFirst},
               sources, out);
  return out;
}

/// Adds dense[b][i] to row i of sample b, such as embeddings of positions. Rows from max_length on are unchanged.
at::Tensor jagged_add_dense(at::Tensor const& values, at::Tensor const& offsets, at::Tensor const& dense) {
  JaggedTensor const jagged(values, offsets, "jagged_add_dense");
  TORCH_CHECK_VALUE(dense.dim() == values.dim() + 1 && dense.size(0) == jagged.num_samples &&
                        dense.sizes().slice(2) == values.sizes().slice(1) &&
                        dense.scalar_type() == values.scalar_type() && dense.device() == values.device(),
                    "jagged_add_dense: dense must be (", jagged.num_samples,
                    " samples, max_length, ...) of the columns, "
                    "type and device of values ",
                    values.sizes(), ", not ", dense.scalar_type(), " ", dense.sizes(), " on ", dense.device());
  at::Tensor const added = dense.contiguous(), out = at::empty_like(jagged.values);
  auto const rows = jagged.rows("jagged_add_dense");
  call_kernel([&] {
    if (values.is_cpu()) {
      return add_dense(rows, added.const_data_ptr(), added.size(1), out.mutable_data_ptr(), torch_executor());
    }
    c10::DeviceGuard const guard(values.device());
    add_dense_async(rows, added.const_data_ptr(), added.size(1), out.mutable_data_ptr(),
                    current_stream(values.device()));
  });
  return out;
}

/// Sum or mean of the rows of each sample: (B, ...). A sample without rows gives 0. The order of additions follows
/// from the offsets alone.
at::Tensor jagged_reduce(at::Tensor const& values, at::Tensor const& offsets, c10::string_view reduction) {
  TORCH_CHECK_VALUE(reduction == "sum" || reduction == "mean", "jagged_reduce: reduction must be sum or mean, not ",
                    reduction);
  auto const kind = reduction == "mean" ? SampleReduction::kMean : SampleReduction::kSum;
  JaggedTensor const jagged(values, offsets, "jagged_reduce");
  auto const rows = jagged.rows("jagged_reduce");
  at::Tensor const out = empty_rows_like(jagged.values, {jagged.num_samples});
  call_kernel([&] {
    if (values.is_cpu()) return reduce_samples(rows, kind, out.mutable_data_ptr(), torch_executor());
    c10::DeviceGuard const guard(values.device());
    at::Tensor const scratch = at::empty({reduce_samples_scratch_bytes(rows)}, values.options().dtype(at::kByte));
    reduce_samples_async(rows, kind, out.mutable_data_ptr(), scratch.mutable_data_ptr(),
                         current_stream(values.device()));
  });
  return out;
}

void implement(torch::Library& library) {
  library.impl("jagged_concat", &jagged_concat);
  library.impl("jagged_split", &jagged_split);
  library.impl("jagged_to_padded", &jagged_to_padded);
  library.impl("padded_to_jagged", &padded_to_jagged);
  library.impl("jagged_expand", &jagged_expand);
  library.impl("jagged_add_dense", &jagged_add_dense);
  library.impl("jagged_reduce", &jagged_reduce);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.def("jagged_concat(Tensor[] values, Tensor[] offsets) -> Tensor");
  library.def("jagged_split(Tensor values, Tensor[] offsets, SymInt[] num_rows) -> Tensor[]");
  library.def("jagged_to_padded(Tensor values, Tensor offsets, SymInt max_length, Scalar padding) -> Tensor");
  library.def("padded_to_jagged(Tensor padded, Tensor offsets, SymInt num_rows) -> Tensor");
  library.def("jagged_expand(Tensor rows, Tensor offsets, SymInt num_rows) -> Tensor");
  library.def("jagged_add_dense(Tensor values, Tensor offsets, Tensor dense) -> Tensor");
  library.def("jagged_reduce(Tensor values, Tensor offsets, str reduction) -> Tensor");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(headway, CUDA, library) { implement(library); }

}  // namespace headway::kernels
