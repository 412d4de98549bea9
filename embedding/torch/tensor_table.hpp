// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/table.hpp"
#include "record_tensors.hpp"
#include "tensors.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace headway::embedding {

/// A Table on tensors. Tensors are on the table's device, except those of records, which are on the CPU.
/// K keys, D columns. Rows are int32, statuses uint8.
class TensorTable : public torch::CustomClassHolder {
 public:
  using RowsAndStatuses = std::pair<at::Tensor, at::Tensor>;
  /// Columns of Records: counts, steps, embeddings, states.
  using RecordTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

  TensorTable(TableOptions const& options, at::Device device);

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] Table const& table() const { return *table_; }
  [[nodiscard]] std::shared_ptr<Table> const& shared_table() const { return table_; }
  [[nodiscard]] TableOptions const& options() const { return options_; }
  /// Version counter: each call that changes the table increments it at its begin and at its end. If it is the same
  /// before and after some reads, no change began or ended in between.
  [[nodiscard]] std::uint64_t num_changes() const { return num_changes_; }
  /// Calls `change(table)`, and counts the change.
  template <class Change>
  decltype(auto) change(Change change) {
    Changing const changing(num_changes_);
    return change(*table_);
  }

  /// @returns (K,) int32 rows and (K,) uint8 statuses, on the table's device
  [[nodiscard]] RowsAndStatuses find(KeyTensors const& keys) const;
  RowsAndStatuses find_or_insert(KeyTensors const& keys);
  /// @returns (K, D)
  [[nodiscard]] at::Tensor gather(KeyTensors const& keys, at::Tensor const& rows) const;
  /// @param gradients (K, D)
  void update(KeyTensors const& keys, at::Tensor const& rows, at::Tensor const& gradients, double learning_rate,
              std::uint64_t step);
  /// @param embeddings (K, D)
  /// @returns (K,) uint8 statuses
  at::Tensor insert_or_assign(KeyTensors const& keys, at::Tensor const& embeddings);
  void erase(KeyTensors const& keys) {
    change([&](Table& table) { table.erase(keys.view(device_)); });
  }
  /// The keys that have a row, in virtual buckets [first_bucket, end_bucket). Each rank owns a range of buckets.
  [[nodiscard]] KeyTensors list(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  /// The keys that are counted but have no row yet (TableOptions::min_count).
  [[nodiscard]] KeyTensors list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  /// @param keys on the CPU
  [[nodiscard]] RecordTensors export_records(KeyTensors const& keys) const;
  /// Imports the rows that a rank owns, or the pending keys. See import_records_of_rank().
  void import_records(FragmentTensors const& fragment, bool are_pending, std::uint32_t rank, std::uint32_t num_ranks);

 private:
  /// Scope of a change: increments `num_changes_` at both ends.
  /// The counter is odd while a change runs, as in a sequence lock, provided that changes do not overlap. A
  /// checkpoint compares it before and after it is written, and is refused if it has moved.
  class Changing {
   public:
    explicit Changing(std::atomic<std::uint64_t>& num_changes) : num_changes_(num_changes) { ++num_changes_; }
    Changing(Changing const&) = delete;
    Changing& operator=(Changing const&) = delete;
    ~Changing() { ++num_changes_; }

   private:
    std::atomic<std::uint64_t>& num_changes_;
  };

  at::Device device_;
  TableOptions options_;
  std::shared_ptr<Table> table_;
  std::atomic<std::uint64_t> num_changes_ = 0;
};

}  // namespace headway::embedding
