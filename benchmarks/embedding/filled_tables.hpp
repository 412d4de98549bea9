#pragma once

#include "cuda_systems.hpp"
#include "cuda_table_settings.hpp"
#include "device_array.hpp"
#include "id_batches.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// All systems with the same ids, each with its initial vector.
class FilledTables {
 public:
  FilledTables(CudaTableSettings const& settings, cudaStream_t stream);

  /// Empties them, and gives them `load` times the capacity; ids that a system evicts meanwhile no system has.
  void fill(double load);
  /// Takes the new ids of the batch out of a system, and puts back what went for them, outside of what is timed.
  void restore(NamedCudaSystem& system, IdBatch const& batch);

  [[nodiscard]] std::span<NamedCudaSystem> systems() { return systems_; }
  [[nodiscard]] std::size_t num_rows() const { return batches_.known().size(); }
  IdBatch const& next_batch(double hit_rate);
  /// Computes the vectors of ids on the device. They are good until the next call of this object.
  std::span<float const> vectors_of(std::span<std::uint64_t const> ids);

 private:
  /// Memory that the device has less, or more, after the call is that of the system.
  void charge(NamedCudaSystem& system, std::function<void()> const& call) const;
  /// Inserts ids until there are `num_ids`, almost. @returns those that are there
  std::vector<std::uint64_t> fill_one_that_evicts(CudaTableSystem& system, std::size_t num_ids);
  void insert(CudaTableSystem& system, std::span<std::uint64_t const> ids);
  /// Those of `ids` of which `system` has a row, or has none.
  enum class Presence : std::uint8_t { kAbsent, kThere };
  std::vector<std::uint64_t> select(CudaTableSystem& system, std::span<std::uint64_t const> ids, Presence presence);

  std::size_t capacity_, batch_, dim_;
  std::vector<NamedCudaSystem> systems_;
  IdBatches batches_;
  DeviceArray<float> vectors_;
};

}  // namespace headway::benchmarks
