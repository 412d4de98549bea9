// SPDX-License-Identifier: Apache-2.0

// Memory of key segments; segment_pool.hpp has the idea.

#include "cpu/index/segment_pool.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace headway::embedding {

namespace {

/// Full segments are cut from slabs of this size: eight huge pages of 2 MiB.
constexpr std::size_t kSlabBytes = std::size_t{16} << 20;
/// Alignment of segments in bytes: a cache line.
constexpr std::align_val_t kLine{64};

}  // namespace

SegmentPool::Memory SegmentPool::take(std::size_t num_bytes) {
  if (num_bytes > kFullBytes) throw std::length_error("a segment of the key structure is full and cannot split");
  GiveBack const give_back{.pool = this, .num_bytes = num_bytes};
  if (num_bytes < kFullBytes) {
    Memory memory(static_cast<std::byte*>(::operator new(num_bytes, kLine)), give_back);
    std::fill_n(memory.get(), num_bytes, std::byte{0});
    std::lock_guard const lock(mutex_);
    small_bytes_ += num_bytes;
    return memory;
  }
  std::unique_lock lock(mutex_);
  if (!free_.empty()) {
    Memory memory(free_.back(), give_back);
    free_.pop_back();
    lock.unlock();
    std::fill_n(memory.get(), num_bytes, std::byte{0});
    return memory;
  }
  free_.reserve((slabs_.size() + 1) * (kSlabBytes / kFullBytes));  // give_back() must not fail.
  if (slabs_.empty() || next_in_slab_ == kSlabBytes) {
    slabs_.emplace_back(kSlabBytes);
    next_in_slab_ = 0;
  }
  Memory memory(slabs_.back().data() + next_in_slab_, give_back);
  next_in_slab_ += kFullBytes;
  return memory;
}

void SegmentPool::trim() noexcept {
  std::lock_guard const lock(mutex_);
  // Slabs can only go as a whole, and every piece that was ever cut from them must be back.
  std::size_t const handed_out = slabs_.empty() ? 0 : (slabs_.size() - 1) * kSlabBytes + next_in_slab_;
  if (free_.size() * kFullBytes < handed_out) return;
  free_.clear();
  slabs_.clear();
}

std::size_t SegmentPool::num_bytes() const {
  std::lock_guard const lock(mutex_);
  // Whole huge pages of the last slab that are not touched yet take no memory.
  std::size_t const unused =
      slabs_.empty() ? 0 : (kSlabBytes - next_in_slab_) / HugeMemory::kPageBytes * HugeMemory::kPageBytes;
  return small_bytes_ + slabs_.size() * kSlabBytes - unused;
}

void SegmentPool::give_back(std::byte* memory, std::size_t num_bytes) noexcept {
  std::lock_guard const lock(mutex_);
  if (num_bytes == kFullBytes) {
    free_.push_back(memory);
    return;
  }
  small_bytes_ -= num_bytes;
  ::operator delete(memory, kLine);
}

}  // namespace headway::embedding
