#pragma once

#include "cpu/huge_memory.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace headway::embedding {

/// Memory of the key structure: segments of full size out of huge pages, which are used again, and smaller ones.
/// Thread-safe; outlives what it gave.
class SegmentPool {
 public:
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20;

  struct GiveBack {
    SegmentPool* pool;
    std::size_t num_bytes;
    void operator()(std::byte* memory) const noexcept { pool->give_back(memory, num_bytes); }
  };
  using Memory = std::unique_ptr<std::byte, GiveBack>;

  /// Zero-filled, aligned to 64 bytes. @throws std::bad_alloc; std::length_error above kFullBytes
  [[nodiscard]] Memory take(std::size_t num_bytes);
  /// Gives full segments back to the operating system, if none is in use.
  void trim() noexcept;
  /// Of segments that are in use, and of those that wait to be used again.
  [[nodiscard]] std::size_t num_bytes() const;

 private:
  void give_back(std::byte* memory, std::size_t num_bytes) noexcept;

  mutable std::mutex mutex_;
  std::vector<HugeMemory> slabs_;
  std::size_t next_in_slab_ = 0;  ///< Of the last one.
  std::vector<std::byte*> free_;
  std::size_t small_bytes_ = 0;
};

}  // namespace headway::embedding
