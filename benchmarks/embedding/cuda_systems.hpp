#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Memory that a system reports.
struct TableBytes {
  std::size_t key_bytes = 0;
  std::size_t row_bytes = 0;
};

/// Options of all systems.
struct CudaSystemOptions {
  std::size_t capacity = 0;  ///< Slots, for systems that do not grow.
  std::size_t batch = 0;     ///< Most ids per call.
  std::size_t dim = 0;
  std::uint64_t seed = 0;
  int device = 0;
  cudaStream_t stream = nullptr;
};

/// Interface of the compared tables on a CUDA device. Ids and vectors are in device memory; the ids of a call are
/// unique. Calls are enqueued on CudaSystemOptions::stream. Each system gets the same calls.
class CudaTableSystem {
 public:
  CudaTableSystem() = default;
  CudaTableSystem(CudaTableSystem const&) = delete;
  CudaTableSystem& operator=(CudaTableSystem const&) = delete;
  virtual ~CudaTableSystem() = default;

  /// Copies the vectors of ids. `out`: (ids, dim); see gives_initial_vectors() for absent ids.
  virtual void find(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
  /// Finds the rows (or addresses) of ids, without their vectors, and keeps the result for found().
  virtual void find_addresses(std::span<std::uint64_t const> ids) = 0;
  virtual void insert_or_assign(std::span<std::uint64_t const> ids, std::span<float const> vectors) = 0;
  /// Copies the vectors of ids. Inserts absent ids, with their initial vector or with the present contents of `out`.
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
  /// Does find() write the initial vector of absent ids? Otherwise it writes nothing for them.
  [[nodiscard]] virtual bool gives_initial_vectors() const = 0;
};

/// A system with its name.
struct NamedCudaSystem {
  std::string name;
  std::unique_ptr<CudaTableSystem> system;
  std::int64_t device_bytes = 0;  ///< Device memory that the system has taken, by the drop of free memory.
};

/// Headway's table, and HierarchicalKV if the program was built with it; all empty.
std::vector<NamedCudaSystem> make_cuda_systems(CudaSystemOptions const& options);

/// Free bytes of the current device. Waits for the device first.
std::size_t free_device_bytes();

}  // namespace headway::benchmarks
