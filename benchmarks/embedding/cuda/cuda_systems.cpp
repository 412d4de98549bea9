// SPDX-License-Identifier: Apache-2.0
#include "cuda_systems.hpp"

#include "device_array.hpp"

#include <headway/embedding/cuda_table.hpp>

#include <functional>
#include <utility>

namespace headway::benchmarks {

namespace {

using embedding::Keys;
using embedding::RowId;

/// Headway's CUDA table. find_addresses() finds rows.
class HeadwayCudaSystem final : public CudaTableSystem {
 public:
  explicit HeadwayCudaSystem(CudaSystemOptions const& options)
      : stream_(options.stream),
        rows_(options.batch),
        table_(embedding::make_cuda_table(
            {.dim = options.dim, .initializer = initial_embeddings(options.seed)},
            {.device = options.device, .current_stream = [stream = options.stream] { return stream; }})) {}

  void find(std::span<std::uint64_t const> ids, std::span<float> out) override {
    find_addresses(ids);
    table_->gather(keys_of(ids), rows_.first(ids.size()), out);
  }
  void find_addresses(std::span<std::uint64_t const> ids) override {
    table_->find(keys_of(ids), rows_.first(ids.size()), {});
  }
  void insert_or_assign(std::span<std::uint64_t const> ids, std::span<float const> embeddings) override {
    table_->insert_or_assign(keys_of(ids), embeddings, {});
  }
  void find_or_insert(std::span<std::uint64_t const> ids, std::span<float> out) override {
    auto const rows = rows_.first(ids.size());
    table_->find_or_insert(keys_of(ids), rows, {});
    table_->gather(keys_of(ids), rows, out);
  }
  void erase(std::span<std::uint64_t const> ids) override { table_->erase(keys_of(ids)); }
  void clear() override { table_->clear(); }

  std::vector<std::uint8_t> found(std::size_t count) const override {
    std::vector<RowId> rows(count);
    base::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    base::check_cuda(cudaMemcpy(rows.data(), rows_.data(), count * sizeof(RowId), cudaMemcpyDeviceToHost),
                     "cudaMemcpy");
    std::vector<std::uint8_t> found(count);
    for (std::size_t i = 0; i < count; ++i) found[i] = rows[i] == RowId::kNone ? 0 : 1;
    return found;
  }
  std::size_t size() const override { return table_->size().rows; }
  std::optional<TableBytes> bytes() const override {
    auto const size = table_->size();
    return TableBytes{.key_bytes = size.key_bytes, .row_bytes = size.row_bytes};
  }
  bool evicts() const override { return false; }
  bool gives_initial_embeddings() const override { return true; }

 private:
  static Keys keys_of(std::span<std::uint64_t const> ids) { return {.ids = ids, .are_unique = true}; }

  cudaStream_t stream_;
  DeviceArray<RowId> rows_;
  std::unique_ptr<embedding::Table> table_;
};

/// Makes a system, and charges it for the device memory that its construction took.
NamedCudaSystem made(std::string name, std::function<std::unique_ptr<CudaTableSystem>()> const& make) {
  auto const before = static_cast<std::int64_t>(free_device_bytes());
  auto system = make();
  auto const after = static_cast<std::int64_t>(free_device_bytes());
  return {.name = std::move(name), .system = std::move(system), .device_bytes = before - after};
}

}  // namespace

std::vector<NamedCudaSystem> make_cuda_systems(CudaSystemOptions const& options) {
  std::vector<NamedCudaSystem> systems;
  systems.push_back(made("headway", [&] { return std::make_unique<HeadwayCudaSystem>(options); }));
#if HEADWAY_HAS_HIERARCHICAL_KV
  systems.push_back(made("hierarchical_kv", [&] { return make_hierarchical_kv_system(options); }));
#endif
  return systems;
}

std::size_t free_device_bytes() {
  std::size_t free_bytes = 0, total_bytes = 0;
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  base::check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return free_bytes;
}

}  // namespace headway::benchmarks
