// SPDX-License-Identifier: Apache-2.0

// Memory of bodies.
//
// Idea: a lookup of 4,096 rows of 64 floats has a body of 1 MiB. malloc() gives memory of that size back to the system,
// and each page of the next one costs a fault. So blocks from 64 KiB on are rounded up to a power of two and kept.
// Invariants: at most kMostKept bytes are kept. Smaller blocks are those of operator new.
// Complexity: O(1).

#include "headway/hybrid/body.hpp"

#include <array>
#include <bit>
#include <mutex>
#include <new>

namespace headway::hybrid {

namespace {

constexpr std::size_t kSmallest = 64 << 10, kMostKept = std::size_t{256} << 20;

class KeptBlocks {
 public:
  void* take(std::size_t size) {
    {
      std::lock_guard const lock(mutex_);
      auto& blocks = blocks_[static_cast<std::size_t>(std::countr_zero(size))];
      if (!blocks.empty()) {
        auto* const block = blocks.back();
        blocks.pop_back();
        num_bytes_ -= size;
        return block;
      }
    }
    return ::operator new(size);
  }
  void give(void* block, std::size_t size) noexcept {
    {
      std::lock_guard const lock(mutex_);
      if (num_bytes_ + size <= kMostKept) {
        try {
          blocks_[static_cast<std::size_t>(std::countr_zero(size))].push_back(block);
          num_bytes_ += size;
          return;
        } catch (std::bad_alloc const&) {  // It is freed instead.
        }
      }
    }
    ::operator delete(block);
  }

 private:
  std::mutex mutex_;
  std::array<std::vector<void*>, 64> blocks_;  ///< By logarithm of the size.
  std::size_t num_bytes_ = 0;
};

/// Never destroyed: bodies may be freed at the end of the process.
KeptBlocks& kept_blocks() {
  static auto* const blocks = new KeptBlocks;
  return *blocks;
}

}  // namespace

void* allocate_body(std::size_t num_bytes) {
  return num_bytes < kSmallest ? ::operator new(num_bytes) : kept_blocks().take(std::bit_ceil(num_bytes));
}

void free_body(void* memory, std::size_t num_bytes) noexcept {
  num_bytes < kSmallest ? ::operator delete(memory) : kept_blocks().give(memory, std::bit_ceil(num_bytes));
}

}  // namespace headway::hybrid
