#pragma once

#include "headway/embedding/table.hpp"
#include "tensor_deduplicator.hpp"
#include "tensors.hpp"

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace headway::embedding {

/// A table as Python has it: tensors are on its device, but for those of records, which are on the CPU.
class TensorTable {
 public:
  using RowsAndStatuses = std::pair<at::Tensor, at::Tensor>;
  /// counts, steps, vectors, states
  using RecordTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

  TensorTable(TableOptions const& options, at::Device device);

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] Table& table() const { return *table_; }

  [[nodiscard]] RowsAndStatuses find(KeyTensors const& keys) const;
  RowsAndStatuses find_or_insert(KeyTensors const& keys);
  [[nodiscard]] at::Tensor gather(KeyTensors const& keys, at::Tensor const& rows) const;
  /// @param rows of the unique keys
  /// @returns (B, D)
  [[nodiscard]] at::Tensor gather_bags(UniqueTensors const& unique, at::Tensor const& rows,
                                       BagTensors const& bags) const;
  void update(KeyTensors const& keys, at::Tensor const& rows, at::Tensor const& gradients, double learning_rate,
              std::uint64_t step);
  /// @param keys those of `unique`, or fewer known ones
  /// @param rows of the keys
  /// @param gradients (B, D)
  void update_bags(KeyTensors const& keys, at::Tensor const& rows, UniqueTensors const& unique, BagTensors const& bags,
                   at::Tensor const& gradients, double learning_rate, std::uint64_t step);
  at::Tensor insert_or_assign(KeyTensors const& keys, at::Tensor const& vectors);
  void erase(KeyTensors const& keys) { table_->erase(keys.view(device_)); }
  [[nodiscard]] KeyTensors list(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  [[nodiscard]] KeyTensors list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  [[nodiscard]] RecordTensors export_records(KeyTensors const& keys) const;
  at::Tensor import_records(KeyTensors const& keys, RecordTensors const& tensors);

 private:
  at::Device device_;
  std::unique_ptr<Table> table_;
};

}  // namespace headway::embedding
