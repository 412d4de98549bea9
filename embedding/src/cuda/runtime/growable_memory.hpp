// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::embedding {

/// Device memory that grows without moving: reserves an address range, and maps physical memory into it as needed.
class GrowableMemory {
 public:
  /// Reserves addresses only.
  /// @param most_bytes upper limit of the size
  /// @param chunk_bytes unit of growth, a multiple of 2 MiB
  /// @throws base::SystemError
  GrowableMemory(int device, std::size_t most_bytes, std::size_t chunk_bytes);
  GrowableMemory(GrowableMemory const&) = delete;
  GrowableMemory& operator=(GrowableMemory const&) = delete;
  ~GrowableMemory();

  /// Maps memory up to at least `num_bytes`, in whole chunks. New memory is not initialised.
  /// @throws std::bad_alloc; std::length_error beyond the reserved range
  void grow(std::size_t num_bytes);
  /// Unmaps and frees all memory. The device must have finished with it.
  void clear();

  [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(begin_); }
  [[nodiscard]] std::size_t num_bytes() const { return num_mapped_; }

 private:
  /// One physical allocation, mapped behind the previous one.
  struct Chunk {
    std::uint64_t handle;  ///< CUmemGenericAllocationHandle.
    std::size_t num_bytes;
  };

  int device_;
  std::uint64_t begin_ = 0;                                  ///< Start of the reserved range (CUdeviceptr).
  std::size_t chunk_bytes_, num_reserved_, num_mapped_ = 0;  ///< Bytes.
  std::vector<Chunk> chunks_;
};

}  // namespace headway::embedding
