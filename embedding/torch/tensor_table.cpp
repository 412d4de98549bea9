// SPDX-License-Identifier: Apache-2.0

// Table on tensors: checks types and devices, allocates outputs, and calls the C++ table. Row ids and statuses are
// int32 and uint8 tensors with the bits of RowId and KeyStatus.

#include "tensor_table.hpp"

#include "devices.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/cuda_table.hpp"

#include <optional>
#include <vector>

namespace headway::embedding {

namespace {

at::Device const kHost(at::kCPU);

std::span<RowId> rows_of(at::Tensor const& rows, at::Device device) {
  auto const words = span_of<std::uint32_t>(rows, at::kInt, device, "rows");
  return {reinterpret_cast<RowId*>(words.data()), words.size()};
}

std::span<KeyStatus> statuses_of(at::Tensor const& statuses, at::Device device) {
  auto const words = span_of<std::uint8_t>(statuses, at::kByte, device, "statuses");
  return {reinterpret_cast<KeyStatus*>(words.data()), words.size()};
}

/// Allocates rows and statuses, and calls `look(keys, rows, statuses)`.
template <class Look>
TensorTable::RowsAndStatuses look_up(KeyTensors const& keys, at::Device device, Look look) {
  auto const view = keys.view(device);
  auto const size = keys.ids.numel();
  TensorTable::RowsAndStatuses result{empty(size, at::kInt, device), empty(size, at::kByte, device)};
  look(view, rows_of(result.first, device), statuses_of(result.second, device));
  return result;
}

KeyTensors keys_of(Records records, std::optional<at::Tensor> counts = std::nullopt) {
  return {tensor_of(std::move(records.ids), at::kLong), tensor_of(std::move(records.tables), at::kInt), 0,
          std::move(counts), true};
}

}  // namespace

TensorTable::TensorTable(TableOptions const& options, at::Device device)
    : device_(device),
      options_(options),
      table_(device.is_cpu() ? make_cpu_table(options) : make_cuda_table(options, place_of(device))) {}

TensorTable::RowsAndStatuses TensorTable::find(KeyTensors const& keys) const {
  return look_up(keys, device_, [&](auto&&... arguments) { table_->find(arguments...); });
}

TensorTable::RowsAndStatuses TensorTable::find_or_insert(KeyTensors const& keys) {
  return look_up(keys, device_,
                 [&](auto&&... arguments) { change([&](Table& table) { table.find_or_insert(arguments...); }); });
}

at::Tensor TensorTable::gather(KeyTensors const& keys, at::Tensor const& rows) const {
  auto const view = keys.view(device_);
  auto out = empty({keys.ids.numel(), static_cast<std::int64_t>(table_->dim())}, at::kFloat, device_);
  table_->gather(view, rows_of(rows, device_), span_of<float>(out, at::kFloat, device_, "out"));
  return out;
}

void TensorTable::update(KeyTensors const& keys, at::Tensor const& rows, at::Tensor const& gradients,
                         double learning_rate, std::uint64_t step) {
  change([&](Table& table) {
    table.update(keys.view(device_), rows_of(rows, device_), floats_of(gradients, device_, "gradients"),
                 {.learning_rate = learning_rate, .number = step});
  });
}

at::Tensor TensorTable::insert_or_assign(KeyTensors const& keys, at::Tensor const& embeddings) {
  auto statuses = empty(keys.ids.numel(), at::kByte, device_);
  change([&](Table& table) {
    table.insert_or_assign(keys.view(device_), floats_of(embeddings, device_, "embeddings"),
                           statuses_of(statuses, device_));
  });
  return statuses;
}

KeyTensors TensorTable::list(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  return keys_of(table_->list(first_bucket, end_bucket));
}

KeyTensors TensorTable::list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  auto records = table_->list_pending(first_bucket, end_bucket);
  auto counts = tensor_of(std::move(records.counts), at::kInt);
  return keys_of(std::move(records), std::move(counts));
}

TensorTable::RecordTensors TensorTable::export_records(KeyTensors const& keys) const {
  auto records = table_->export_records(keys.view(kHost));
  auto const size = static_cast<std::int64_t>(records.ids.size());
  auto const matrix = [size](std::vector<float> values, std::size_t width) {
    return tensor_of(std::move(values), at::kFloat).view({size, static_cast<std::int64_t>(width)});
  };
  return {tensor_of(std::move(records.counts), at::kInt), tensor_of(std::move(records.steps), at::kInt),
          matrix(std::move(records.embeddings), table_->dim()),
          matrix(std::move(records.states), table_->state_size())};
}

void TensorTable::import_records(FragmentTensors const& fragment, bool are_pending, std::uint32_t rank,
                                 std::uint32_t num_ranks) {
  auto const view = fragment.view();
  change([&](Table& table) {
    RecordTarget const target{.table = &table, .table_ids = {fragment.table}};
    import_records_of_rank(are_pending ? view.pending : view.rows, {&target, 1}, rank, num_ranks);
  });
}

}  // namespace headway::embedding
