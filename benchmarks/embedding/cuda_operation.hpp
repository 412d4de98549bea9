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

enum class CudaOperation : std::uint8_t { kFind, kFindAddresses, kInsertOrAssign, kFindOrInsert };

inline constexpr std::array kCudaOperations{CudaOperation::kFind, CudaOperation::kFindAddresses,
                                            CudaOperation::kInsertOrAssign, CudaOperation::kFindOrInsert};

std::string_view name_of(CudaOperation operation);
bool inserts(CudaOperation operation);
/// Whether the vectors of all ids are read and written.
bool moves_vectors(CudaOperation operation);

/// Calls one operation, and knows what has to come out.
class CudaOperationRunner {
 public:
  CudaOperationRunner(CudaOperation operation, std::size_t batch, std::size_t dim, std::uint64_t seed);

  /// Overwrites what was found before, and thereby empties the caches of the device. Waits.
  void prepare() const;
  /// @param vectors of `ids`, for insert_or_assign
  void run(CudaTableSystem& system, std::span<std::uint64_t const> ids, std::span<float const> vectors) const;
  /// Looks at some of the keys of the run that was the last. @throws std::runtime_error if one is wrong
  void check(NamedCudaSystem& system, IdBatch const& batch) const;

 private:
  [[nodiscard]] std::size_t count_wrong_addresses(CudaTableSystem const& system, IdBatch const& batch) const;
  [[nodiscard]] std::size_t count_wrong_vectors(CudaTableSystem const& system, IdBatch const& batch) const;

  CudaOperation operation_;
  std::size_t batch_, dim_;
  std::uint64_t seed_;
  DeviceArray<float> out_;
};

}  // namespace headway::benchmarks
