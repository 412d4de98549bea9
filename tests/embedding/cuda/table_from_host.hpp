// SPDX-License-Identifier: Apache-2.0

// Lets the tests of CPU tables run on CUDA tables: keys and results are copied between host and device around each
// call.
//
// Calls that look up, gather, insert or update wait for the device, so an error of a kernel shows in the call that
// caused it. erase(), begin_step() and halve_counts() may only enqueue; their errors show in the next call that waits.
// Such waits are far too slow for use, and exactly right for tests.

#pragma once

#include "cuda/runtime/device_buffer.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace headway::embedding {

inline bool has_cuda_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// Adapter: a CUDA table that takes keys and values in host memory. Updates have no results, so they wait by
/// table_->size().
class TableFromHost final : public Table {
 public:
  explicit TableFromHost(TableOptions const& options) : table_(make_cuda_table(options, {})) {}

  [[nodiscard]] std::size_t dim() const override { return table_->dim(); }
  [[nodiscard]] std::size_t state_size() const override { return table_->state_size(); }
  [[nodiscard]] TableSize size() const override { return table_->size(); }
  [[nodiscard]] TableStatistics statistics() const override { return table_->statistics(); }
  [[nodiscard]] std::uint64_t generation() const override { return table_->generation(); }
  void begin_step(std::uint32_t step, std::uint32_t oldest_in_use) override { table_->begin_step(step, oldest_in_use); }
  void resume_step(std::uint32_t step, std::uint32_t oldest_in_use) override {
    table_->resume_step(step, oldest_in_use);
  }
  void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const override {
    OnDevice const on_device(keys);
    Result<RowId> to_rows(rows);
    Result<KeyStatus> to_statuses(statuses);
    table_->find(on_device.keys, to_rows.span(), to_statuses.span());
  }
  void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) override {
    OnDevice const on_device(keys);
    Result<RowId> to_rows(rows);
    Result<KeyStatus> to_statuses(statuses);
    table_->find_or_insert(on_device.keys, to_rows.span(), to_statuses.span());
  }
  void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const override {
    OnDevice const on_device(keys);
    auto const device_rows = copy_to_device(rows, nullptr);
    {
      Result<float> to_out(out);
      table_->gather(on_device.keys, device_rows.span(), to_out.span());
    }
    static_cast<void>(table_->size());
  }
  void gather_bags(Keys const& keys, std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                   Bags const& bags, std::span<float> out) const override {
    OnDevice const on_device(keys);
    auto const device_rows = copy_to_device(rows, nullptr);
    auto const device_inverse_indices = copy_to_device(inverse_indices, nullptr);
    auto const offsets = copy_to_device(bags.offsets, nullptr);
    auto const weights = copy_to_device(bags.weights, nullptr);
    Result<float> to_out(out);
    table_->gather_bags(on_device.keys, device_rows.span(), device_inverse_indices.span(),
                        {.offsets = offsets.span(), .weights = weights.span()}, to_out.span());
  }
  void update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
              kernels::OptimizerStep const& step) override {
    OnDevice const on_device(keys);
    auto const device_rows = copy_to_device(rows, nullptr);
    auto const device_gradients = copy_to_device(gradients, nullptr);
    table_->update(on_device.keys, device_rows.span(), device_gradients.span(), step);
    static_cast<void>(table_->size());
  }
  void update_bags(Keys const& keys, std::span<RowId const> rows, CsrMap const& csr, Bags const& bags,
                   std::span<float const> gradients, kernels::OptimizerStep const& step) override {
    OnDevice const on_device(keys);
    auto const device_rows = copy_to_device(rows, nullptr);
    auto const inverse_indices = copy_to_device(csr.inverse_indices, nullptr);
    auto const csr_indices = copy_to_device(csr.csr_indices, nullptr);
    auto const csr_offsets = copy_to_device(csr.csr_offsets, nullptr);
    auto const offsets = copy_to_device(bags.offsets, nullptr);
    auto const weights = copy_to_device(bags.weights, nullptr);
    auto const device_gradients = copy_to_device(gradients, nullptr);
    table_->update_bags(on_device.keys, device_rows.span(),
                        {.inverse_indices = inverse_indices.span(),
                         .csr_indices = csr_indices.span(),
                         .csr_offsets = csr_offsets.span()},
                        {.offsets = offsets.span(), .weights = weights.span()}, device_gradients.span(), step);
    static_cast<void>(table_->size());
  }
  void insert_or_assign(Keys const& keys, std::span<float const> embeddings, std::span<KeyStatus> statuses) override {
    OnDevice const on_device(keys);
    auto const device_embeddings = copy_to_device(embeddings, nullptr);
    Result<KeyStatus> to_statuses(statuses);
    table_->insert_or_assign(on_device.keys, device_embeddings.span(), to_statuses.span());
  }
  void erase(Keys const& keys) override { table_->erase(OnDevice(keys).keys); }
  std::size_t evict(std::size_t num_rows) override { return table_->evict(num_rows); }
  void halve_counts() override { table_->halve_counts(); }
  void clear() override { table_->clear(); }
  [[nodiscard]] Records list(std::uint32_t first_bucket, std::uint32_t end_bucket) const override {
    return table_->list(first_bucket, end_bucket);
  }
  [[nodiscard]] Records list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const override {
    return table_->list_pending(first_bucket, end_bucket);
  }
  [[nodiscard]] Records export_records(Keys const& keys) const override { return table_->export_records(keys); }
  void import_records(Records const& records, std::span<KeyStatus> statuses) override {
    table_->import_records(records, statuses);
  }
  void import_pending(Records const& records) override { table_->import_pending(records); }
  std::size_t evict_beyond_limit() override { return table_->evict_beyond_limit(); }

 private:
  /// Device copies of the keys of a call.
  struct OnDevice {
    explicit OnDevice(Keys const& on_host)
        : ids(copy_to_device(on_host.ids, nullptr)),
          tables(copy_to_device(on_host.tables, nullptr)),
          counts(copy_to_device(on_host.counts, nullptr)),
          keys{.ids = ids.span(),
               .tables = tables.span(),
               .table = on_host.table,
               .counts = counts.span(),
               .are_unique = on_host.are_unique} {}

    DeviceBuffer<std::uint64_t> ids;
    DeviceBuffer<std::uint32_t> tables, counts;
    Keys keys;
  };
  /// Device memory for an output of a call; copied to the host by the destructor.
  template <class T>
  class Result {
   public:
    explicit Result(std::span<T> on_host) : on_host_(on_host), on_device_(copy_to_device<T>(on_host, nullptr)) {}
    Result(Result const&) = delete;
    Result& operator=(Result const&) = delete;
    ~Result() { copy_to_host(on_device_, on_host_, nullptr); }
    [[nodiscard]] std::span<T> span() const { return on_device_.span(); }

   private:
    std::span<T> on_host_;
    DeviceBuffer<T> on_device_;
  };

  std::unique_ptr<Table> table_;
};

}  // namespace headway::embedding
