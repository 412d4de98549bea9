// SPDX-License-Identifier: Apache-2.0

// Segment pool: memory for the segments of key indices.
//
// Idea: most memory of a large index is segments of full size (1 MiB). Those are cut from slabs of 16 MiB of huge pages
// and go to a free list when they are given back, so a split that replaces a segment reuses memory that is mapped and
// touched. Smaller segments, those of small tables, come from operator new.
//
// Example: a full segment splits. It takes two pieces: one from the free list, one new from the last slab. Then the old
//   piece goes to the free list, for the next split.
//
// Invariants: memory is zero-filled when it is taken. `free_` has capacity for all pieces of all slabs, so giving back
//   never fails. Slabs return to the operating system only in trim(), once every piece is free.
// Complexity: O(1) besides the zero fill. The mutex guards all fields and is not held during the fill.

#pragma once

#include "cpu/runtime/huge_memory.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace headway::embedding {

/// Memory for the segments of all key indices of a table. Thread-safe. It must outlive the memory that it gives.
class SegmentPool {
 public:
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20;  ///< The largest segment.

  /// Deleter that returns memory to the pool.
  struct GiveBack {
    SegmentPool* pool;
    std::size_t num_bytes;
    void operator()(std::byte* memory) const noexcept { pool->give_back(memory, num_bytes); }
  };
  using Memory = std::unique_ptr<std::byte, GiveBack>;

  /// Zero-filled, aligned to 64 bytes. @throws std::bad_alloc; std::length_error above kFullBytes
  [[nodiscard]] Memory take(std::size_t num_bytes);
  /// Returns slabs to the operating system if no full segment is in use.
  void trim() noexcept;
  /// Bytes of segments in use and of free ones that wait for reuse.
  [[nodiscard]] std::size_t num_bytes() const;

 private:
  void give_back(std::byte* memory, std::size_t num_bytes) noexcept;

  mutable std::mutex mutex_;
  std::vector<HugeMemory> slabs_;
  std::size_t next_in_slab_ = 0;  ///< Offset of the first unused byte in the last slab.
  std::vector<std::byte*> free_;
  std::size_t small_bytes_ = 0;  ///< Bytes in use of segments below kFullBytes.
};

}  // namespace headway::embedding
