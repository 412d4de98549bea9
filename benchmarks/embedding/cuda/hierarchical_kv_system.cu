// SPDX-License-Identifier: Apache-2.0
#include "cuda_systems.hpp"
#include "device_array.hpp"

#include <merlin_hashtable.cuh>

namespace headway::benchmarks {

namespace {

/// NVIDIA's HierarchicalKV with all embeddings in device memory and LRU eviction. found_ and addresses_ hold the
/// results of its last find.
class HierarchicalKvSystem final : public CudaTableSystem {
 public:
  explicit HierarchicalKvSystem(CudaSystemOptions const& options)
      : stream_(options.stream), found_(options.batch), addresses_(options.batch) {
    // Memory limit beyond the embeddings, since HierarchicalKV rounds the capacity up to whole buckets.
    constexpr std::size_t kSpareBytes = std::size_t{1} << 30;
    nv::merlin::HashTableOptions of_table;
    of_table.init_capacity = options.capacity;
    of_table.max_capacity = options.capacity;
    of_table.max_hbm_for_vectors = options.capacity * options.dim * sizeof(float) + kSpareBytes;
    of_table.dim = options.dim;
    of_table.device_id = options.device;
    table_.init(of_table);
  }

  void find(std::span<std::uint64_t const> ids, std::span<float> out) override {
    table_.find(ids.size(), ids.data(), out.data(), found_.data(), nullptr, stream_);
    base::check_cuda(cudaGetLastError(), "HierarchicalKV's find");
  }
  void find_addresses(std::span<std::uint64_t const> ids) override {
    table_.find(ids.size(), ids.data(), addresses_.data(), found_.data(), nullptr, stream_);
    base::check_cuda(cudaGetLastError(), "HierarchicalKV's find");
  }
  void insert_or_assign(std::span<std::uint64_t const> ids, std::span<float const> embeddings) override {
    table_.insert_or_assign(ids.size(), ids.data(), embeddings.data(), nullptr, stream_);
    base::check_cuda(cudaGetLastError(), "HierarchicalKV's insert_or_assign");
  }
  void find_or_insert(std::span<std::uint64_t const> ids, std::span<float> out) override {
    table_.find_or_insert(ids.size(), ids.data(), out.data(), nullptr, stream_);
    base::check_cuda(cudaGetLastError(), "HierarchicalKV's find_or_insert");
  }
  void erase(std::span<std::uint64_t const> ids) override {
    table_.erase(ids.size(), ids.data(), stream_);
    base::check_cuda(cudaGetLastError(), "HierarchicalKV's erase");
  }
  void clear() override {
    table_.clear(stream_);
    base::check_cuda(cudaStreamSynchronize(stream_), "HierarchicalKV's clear");
  }

  std::vector<std::uint8_t> found(std::size_t count) const override {
    static_assert(sizeof(bool) == 1);
    std::vector<std::uint8_t> found(count);
    base::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    base::check_cuda(cudaMemcpy(found.data(), found_.data(), count, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return found;
  }
  std::size_t size() const override { return table_.size(stream_); }
  std::optional<TableBytes> bytes() const override { return std::nullopt; }
  bool evicts() const override { return true; }
  bool gives_initial_embeddings() const override { return false; }

 private:
  using HashTable = nv::merlin::HashTable<std::uint64_t, float, std::uint64_t, nv::merlin::EvictStrategy::kLru>;

  cudaStream_t stream_;
  DeviceArray<bool> found_;
  DeviceArray<float*> addresses_;
  HashTable table_;
};

}  // namespace

std::unique_ptr<CudaTableSystem> make_hierarchical_kv_system(CudaSystemOptions const& options) {
  return std::make_unique<HierarchicalKvSystem>(options);
}

}  // namespace headway::benchmarks
