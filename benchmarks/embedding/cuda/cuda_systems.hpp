// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <headway/embedding/initializer.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Bytes in use for keys and for rows, as the system itself reports them.
struct TableBytes {
  std::size_t key_bytes = 0;
  std::size_t row_bytes = 0;
};

/// Options that each system is made with.
struct CudaSystemOptions {
  std::size_t capacity = 0;  ///< Slots, for systems that do not grow.
  std::size_t batch = 0;     ///< Most ids per call.
  std::size_t dim = 0;
  std::uint64_t seed = 0;
  int device = 0;
  cudaStream_t stream = nullptr;
};

/// Interface of the compared tables on a CUDA device. Ids and embeddings are in device memory; the ids of a call are
/// unique. Calls are enqueued on CudaSystemOptions::stream. Each system gets the same calls.
class CudaTableSystem {
 public:
  CudaTableSystem() = default;
  CudaTableSystem(CudaTableSystem const&) = delete;
  CudaTableSystem& operator=(CudaTableSystem const&) = delete;
  virtual ~CudaTableSystem() = default;

  /// Copies the embeddings of ids. `out`: (ids, dim); see gives_initial_embeddings() for absent ids.
  virtual void find(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
  /// Finds the rows (or addresses) of ids, without their embeddings, and keeps the result for found().
  virtual void find_addresses(std::span<std::uint64_t const> ids) = 0;
  virtual void insert_or_assign(std::span<std::uint64_t const> ids, std::span<float const> embeddings) = 0;
  /// Copies the embeddings of ids to `out`. Inserts absent ids: with an initial embedding if
  /// gives_initial_embeddings(), else with the embedding that the caller has put into `out`.
  virtual void find_or_insert(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
  virtual void erase(std::span<std::uint64_t const> ids) = 0;
  virtual void clear() = 0;

  /// 1 for each id that the last find_addresses() found, else 0; host memory. Waits for the stream.
  [[nodiscard]] virtual std::vector<std::uint8_t> found(std::size_t count) const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// Memory in use, if the system reports it.
  [[nodiscard]] virtual std::optional<TableBytes> bytes() const = 0;
  /// Can an insertion evict other ids?
  [[nodiscard]] virtual bool evicts() const = 0;
  /// True if find() writes an initial embedding for an absent id. Otherwise it leaves that part of the output
  /// unchanged.
  [[nodiscard]] virtual bool gives_initial_embeddings() const = 0;
};

/// A system, its name and its device memory.
struct NamedCudaSystem {
  std::string name;
  std::unique_ptr<CudaTableSystem> system;
  std::int64_t device_bytes = 0;  ///< Device memory of the system, measured as the decrease of free memory.
};

/// Initial embedding of each id, the same in all systems. Measured writes write these values too, so that results can
/// be checked.
inline embedding::Initializer initial_embeddings(std::uint64_t seed) {
  return embedding::Initializer::uniform(-1, 1, seed);
}

/// NVIDIA's HierarchicalKV, entirely in device memory, with least-recently-used eviction. Defined only if
/// its headers were found.
std::unique_ptr<CudaTableSystem> make_hierarchical_kv_system(CudaSystemOptions const& options);

/// Headway's table, and HierarchicalKV if the program was built with it; all empty.
std::vector<NamedCudaSystem> make_cuda_systems(CudaSystemOptions const& options);

/// Free bytes of the current device. Waits for the device first.
std::size_t free_device_bytes();

}  // namespace headway::benchmarks
