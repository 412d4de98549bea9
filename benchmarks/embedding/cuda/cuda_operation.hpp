// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_systems.hpp"
#include "device_array.hpp"
#include "id_batches.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headway::benchmarks {

/// Operations that are measured.
enum class CudaOperation : std::uint8_t { kFind, kFindAddresses, kInsertOrAssign, kFindOrInsert };

inline constexpr std::array kCudaOperations{CudaOperation::kFind, CudaOperation::kFindAddresses,
                                            CudaOperation::kInsertOrAssign, CudaOperation::kFindOrInsert};

std::string_view name_of(CudaOperation operation);
/// Does the operation insert absent ids?
bool inserts(CudaOperation operation);
/// Does the operation read and write the embeddings of all ids?
bool moves_embeddings(CudaOperation operation);

/// Runs one operation on a system and checks its results.
class CudaOperationRunner {
 public:
  /// @param batch most ids per run
  /// @param seed seed of initial_embeddings()
  CudaOperationRunner(CudaOperation operation, std::size_t batch, std::size_t dim, std::uint64_t seed);

  /// Overwrites the results of the run before, which also flushes the caches of the device. Waits.
  void prepare() const;
  /// Runs the operation once. @param embeddings (ids, dim), for insert_or_assign
  void run(CudaTableSystem& system, std::span<std::uint64_t const> ids, std::span<float const> embeddings) const;
  /// Checks a sample of the results of the last run.
  /// @throws std::runtime_error if one is wrong; a system with eviction may have lost some ids
  void check(NamedCudaSystem& system, IdBatch const& batch) const;

 private:
  [[nodiscard]] std::size_t count_wrong_addresses(CudaTableSystem const& system, IdBatch const& batch) const;
  [[nodiscard]] std::size_t count_wrong_embeddings(CudaTableSystem const& system, IdBatch const& batch) const;

  CudaOperation operation_;
  std::size_t batch_, dim_;
  std::uint64_t seed_;
  DeviceArray<float> out_;  ///< (batch, dim)
};

}  // namespace headway::benchmarks
