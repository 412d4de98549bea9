// SPDX-License-Identifier: Apache-2.0

// Helpers of the jagged operators: offsets from lengths, rows of tensors, and moves of several tensors in one call.

#include "jagged_tensors.hpp"

#include "headway/kernels/jagged_offsets.hpp"

#include <cstring>

namespace headway::kernels {

namespace {

void expect_lengths(at::Tensor const& lengths) {
  TORCH_CHECK_VALUE(lengths.scalar_type() == at::kLong || lengths.scalar_type() == at::kInt,
                    "lengths must be int64 or int32, not ", lengths.scalar_type());
}

}  // namespace

at::Tensor offsets_of(at::Tensor const& lengths) {
  expect_lengths(lengths);
  at::Tensor offsets = at::empty({lengths.numel() + 1}, lengths.options().dtype(at::kLong));
  offsets.narrow(0, 0, 1).zero_();
  at::Tensor sums = offsets.narrow(0, 1, lengths.numel());
  at::cumsum_out(sums, lengths.reshape({-1}), 0);
  return offsets;
}

/// @param num_rows rows of the values, which both lists of lengths must add up to
MovedOffsets offsets_of_both(at::Tensor const& before, at::Tensor const& after, std::int64_t num_rows) {
  expect_lengths(before);
  std::int64_t const num_before = before.numel(), num_after = after.numel();
  // One allocation and one scan serve both lists.
  at::Tensor const offsets = at::empty({num_before + num_after + 2}, before.options().dtype(at::kLong));
  MovedLengths const lengths{
      .type = before.scalar_type() == at::kInt ? MovedLengths::LengthType::kInt32 : MovedLengths::LengthType::kInt64,
      .num_before = num_before,
      .num_after = num_after,
      .num_rows = num_rows,
      .before = before.const_data_ptr(),
      .after = after.const_data_ptr(),
      .offsets = offsets.mutable_data_ptr<std::int64_t>()};
  call_kernel([&] {
    if (before.is_cpu()) return find_offsets(lengths);
    c10::DeviceGuard const guard(before.device());
    std::int64_t const num_bytes = find_offsets_scratch_bytes(lengths);
    at::Tensor const scratch = at::empty({num_bytes}, before.options().dtype(at::kByte));
    find_offsets_async(lengths, scratch.mutable_data_ptr(), num_bytes, current_stream(before.device()));
  });
  return {offsets.narrow(0, 0, num_before + 1), offsets.narrow(0, num_before + 1, num_after + 1)};
}

std::int64_t num_columns(at::Tensor const& values, std::int64_t num_leading) {
  std::int64_t product = 1;
  for (std::int64_t i = num_leading; i < values.dim(); ++i) product *= values.size(i);
  return product;
}

std::vector<at::Tensor> contiguous_rows(at::TensorList values, char const* op) {
  TORCH_CHECK_VALUE(!values.empty(), op, ": there are no values");
  std::vector<at::Tensor> rows;
  rows.reserve(values.size());
  for (auto const& each : values) {
    TORCH_CHECK_VALUE(each.dim() >= 1, op, ": values must have a dimension of rows");
    TORCH_CHECK_VALUE(each.size(0) == values[0].size(0), op, ": values have ", values[0].size(0), " and ", each.size(0),
                      " rows, and must have equally many");
    TORCH_CHECK_VALUE(each.device() == values[0].device(), op, ": values are on ", values[0].device(), " and ",
                      each.device());
    rows.push_back(each.contiguous());
  }
  return rows;
}

at::Tensor empty_rows_like(at::Tensor const& values, at::IntArrayRef leading, std::int64_t num_leading) {
  std::vector<std::int64_t> shape = leading.vec();
  for (std::int64_t i = num_leading; i < values.dim(); ++i) shape.push_back(values.size(i));
  return at::empty(shape, values.options());
}

std::vector<at::Tensor> empty_rows_like(at::TensorList values, at::IntArrayRef leading, std::int64_t num_leading) {
  std::vector<at::Tensor> outs;
  outs.reserve(values.size());
  for (auto const& each : values) outs.push_back(empty_rows_like(each, leading, num_leading));
  return outs;
}

namespace {

void move(JaggedMove const& move, at::Device device, std::span<MovedRows const> rows) {
  call_kernel([&] {
    if (device.is_cpu()) return move_rows(move, rows, torch_executor());
    c10::DeviceGuard const guard(device);
    move_rows_async(move, rows, current_stream(device));
  });
}

/// Describes a tensor for a move. @returns false if rows have no columns, so that nothing is to be moved
bool set_rows(MovedRows& rows, at::Tensor const& source, at::Tensor const& out, std::int64_t num_leading) {
  rows.source = source.const_data_ptr();
  rows.out = out.mutable_data_ptr();
  rows.row_bytes = num_columns(source, num_leading) * static_cast<std::int64_t>(source.element_size());
  return rows.row_bytes > 0;
}

}  // namespace

void move_tensors(JaggedMove const& move_of_all, at::TensorList sources, at::TensorList outs,
                  std::int64_t num_leading) {
  std::vector<MovedRows> rows;
  rows.reserve(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    MovedRows each;
    if (set_rows(each, sources[i], outs[i], num_leading)) rows.push_back(each);
  }
  move(move_of_all, sources[0].device(), rows);
}

void move_tensor(JaggedMove const& move_of_one, at::Tensor const& source, at::Tensor const& out, at::Scalar const& fill,
                 std::int64_t num_leading) {
  MovedRows rows;
  bool const has_columns = set_rows(rows, source, out, num_leading);
  at::Tensor const element = at::scalar_tensor(fill, at::TensorOptions(source.scalar_type()));
  std::size_t const size = element.element_size();
  // The kernel copies 16 bytes at a time, so the element is repeated to that size.
  for (std::size_t i = 0; i + size <= sizeof(rows.fill); i += size) {
    std::memcpy(rows.fill + i, element.const_data_ptr(), size);
  }
  move(move_of_one, source.device(), {&rows, has_columns ? 1U : 0U});
}

}  // namespace headway::kernels
