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

/// What a system says of its memory.
struct TableBytes {
  std::size_t key_bytes = 0;
  std::size_t row_bytes = 0;
};

struct CudaSystemOptions {
  std::size_t capacity = 0;  ///< Slots of a system that does not grow.
  std::size_t batch = 0;     ///< Ids of a call at most.
  std::size_t dim = 0;
  std::uint64_t seed = 0;
  int device = 0;
  cudaStream_t stream = nullptr;
};

/// What finds vectors by id on a device: ids and vectors are in its memory, and no id comes twice in a call. Calls go
/// to the stream of the options. Each system gets the same ones.
class CudaTableSystem {
 public:
  CudaTableSystem() = default;
  CudaTableSystem(CudaTableSystem const&) = delete;
  CudaTableSystem& operator=(CudaTableSystem const&) = delete;
  virtual ~CudaTableSystem() = default;

  /// The vectors of ids. `out`: (ids, dim); of those that are not there see gives_initial_vectors().
  virtual void find(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
  /// Where the vectors are, which it keeps.
  virtual void find_addresses(std::span<std::uint64_t const> ids) = 0;
  virtual void insert_or_assign(std::span<std::uint64_t const> ids, std::span<float const> vectors) = 0;
  /// Inserts what is not there, with its initial vector, or with what `out` has.
  virtual void find_or_insert(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
  virtual void erase(std::span<std::uint64_t const> ids) = 0;
  virtual void clear() = 0;

  /// Which ids of the last find_addresses() were there; in memory of the host. Waits, as do those below.
  [[nodiscard]] virtual std::vector<std::uint8_t> found(std::size_t count) const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual std::optional<TableBytes> bytes() const = 0;
  /// Ids may go when others come.
  [[nodiscard]] virtual bool evicts() const = 0;
  /// Of ids that are not there; else nothing is written.
  [[nodiscard]] virtual bool gives_initial_vectors() const = 0;
};

struct NamedCudaSystem {
  std::string name;
  std::unique_ptr<CudaTableSystem> system;
  std::int64_t device_bytes = 0;  ///< By which the free memory of the device went down.
};

/// Headway's table, and HierarchicalKV if this program was built with it, all empty.
std::vector<NamedCudaSystem> make_cuda_systems(CudaSystemOptions const& options);

/// Bytes of the device that are free, when all that it was given to do is done.
std::size_t free_device_bytes();

}  // namespace headway::benchmarks
