#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::embedding {

/// Memory of a device that grows without moving: a range of addresses is reserved, and chunks are mapped as they are
/// needed.
class GrowableMemory {
 public:
  /// Nothing is mapped yet. `most_bytes`: that it will ever have; `chunk_bytes`: a multiple of 2 MiB.
  /// @throws comm::SystemError
  GrowableMemory(int device, std::size_t most_bytes, std::size_t chunk_bytes);
  GrowableMemory(GrowableMemory const&) = delete;
  GrowableMemory& operator=(GrowableMemory const&) = delete;
  ~GrowableMemory();

  /// Maps what is missing to `num_bytes`, in whole chunks.
  /// @throws std::bad_alloc; std::length_error beyond what was reserved
  void grow(std::size_t num_bytes);
  /// Gives all memory back; the device must not use it any more.
  void clear();

  [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(begin_); }
  [[nodiscard]] std::size_t num_bytes() const { return num_mapped_; }

 private:
  struct Chunk {
    std::uint64_t handle;
    std::size_t num_bytes;
  };

  int device_;
  std::uint64_t begin_ = 0;
  std::size_t chunk_bytes_, num_reserved_, num_mapped_ = 0;
  std::vector<Chunk> chunks_;
};

}  // namespace headway::embedding
