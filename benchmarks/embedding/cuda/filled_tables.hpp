// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_systems.hpp"
#include "cuda_table_settings.hpp"
#include "device_array.hpp"
#include "id_batches.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// All systems, filled with the same ids and their initial embeddings. A system is a table implementation under
/// comparison (cuda_systems.hpp).
class FilledTables {
 public:
  FilledTables(CudaTableSettings const& settings, cudaStream_t stream);

  /// Empties all systems and fills them with `load` * capacity ids. If one system evicts while it is filled, the others
  /// get only the ids that it has kept.
  void fill(double load);
  /// Undoes the insertions of a batch in one system: erases the new ids, and re-inserts the ids evicted for them. It is
  /// not part of the timed call.
  void restore(NamedCudaSystem& system, IdBatch const& batch);

  [[nodiscard]] std::span<NamedCudaSystem> systems() { return systems_; }
  [[nodiscard]] std::size_t num_rows() const { return batches_.known().size(); }
  /// Makes a batch. The fraction `hit_rate` of its ids is in the tables. Valid until the next batch.
  IdBatch const& next_batch(double hit_rate);
  /// Computes the initial embeddings of ids on the device. Valid until the next call to this object.
  std::span<float const> embeddings_of(std::span<std::uint64_t const> ids);

 private:
  /// Runs `call`, and adds the decrease of free device memory to system.device_bytes.
  void charge(NamedCudaSystem& system, std::function<void()> const& call) const;
  /// Inserts new ids until about `num_ids` are in a system with eviction. @returns the ids in the system
  std::vector<std::uint64_t> fill_one_that_evicts(CudaTableSystem& system, std::size_t num_ids);
  void insert(CudaTableSystem& system, std::span<std::uint64_t const> ids);
  enum class Presence : std::uint8_t { kAbsent, kThere };
  /// The ids that `system` has (kThere) or does not have (kAbsent).
  std::vector<std::uint64_t> select(CudaTableSystem& system, std::span<std::uint64_t const> ids, Presence presence);

  std::size_t capacity_, batch_, dim_;
  std::vector<NamedCudaSystem> systems_;
  IdBatches batches_;
  DeviceArray<float> embeddings_;
};

}  // namespace headway::benchmarks
