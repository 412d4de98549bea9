// SPDX-License-Identifier: Apache-2.0

// Memory for blocks of exchanges that is mapped once and used often. Mapping a block costs a system call and a page
// fault for each page, and RDMA must register it, which pins its pages. So a freed block waits for the next request
// of its size instead of being unmapped, and registrations of it stay valid.
//
// Requests are rounded up to a size class, so that a batch whose size differs from the last one's finds a block:
//
//   request    70 KiB    1.1 MiB    2.5 MiB    5 MiB
//   block     128 KiB    2   MiB    4   MiB    6 MiB
//
// - A block is in `blocks_` from its mapping until the pool drops it, in use or free; in `free_` only while it is free.
// - A freed block goes to the front of the list and requests search from there: memory used last is most likely cached.
// - Above 1 GiB of freed memory the block that was freed longest ago is dropped. Somebody may still hold it, such as
//   a registration; then it stays mapped, but find() no longer returns it, and the holder can notice that.
//
// Cost: a linear search of the freed blocks, and O(log n) to find the block of an address.

#include "system/memory_pool.hpp"

#include "headway/comm/memory.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace headway::comm {

namespace {

/// Limit on freed memory that the process keeps.
constexpr std::size_t kMaxFreeBytes = std::size_t{1} << 30;
/// Blocks up to kLargeStep have sizes that are powers of two, larger ones are multiples of it.
constexpr std::size_t kSmallestBlock = 64 * 1024;
constexpr std::size_t kLargeStep = std::size_t{2} << 20;

/// Rounds up to one of few sizes, so that freed blocks fit later requests.
std::size_t block_bytes(std::size_t num_bytes) {
  if (num_bytes > kLargeStep) return (num_bytes + kLargeStep - 1) / kLargeStep * kLargeStep;
  return std::bit_ceil(std::max(num_bytes, kSmallestBlock));
}

}  // namespace

// The pool is never destroyed: Python may free tensors after static objects are gone.
MemoryPool& MemoryPool::shared() {
  static auto& pool = *new auto(std::make_shared<MemoryPool>(kMaxFreeBytes));
  return *pool;
}

std::shared_ptr<std::byte> MemoryPool::allocate(std::size_t num_bytes) {
  std::size_t const wanted = block_bytes(num_bytes);
  PoolBlock block;
  {
    std::lock_guard const lock(mutex_);
    auto const fitting = std::ranges::find(free_, wanted, [](auto const& each) { return each->bytes().size(); });
    if (fitting != free_.end()) {
      block = std::move(*fitting);
      free_.erase(fitting);
      num_free_bytes_ -= wanted;
    }
  }
  if (!block) {
    // Mapped without the lock: other threads need not wait for the system call.
    block = std::make_shared<AnonymousMapping const>(wanted);
    std::lock_guard const lock(mutex_);
    blocks_.emplace(block->bytes().data(), block);
  }
  // The deleter holds the pool and the block, so both outlive every pointer that was handed out.
  std::byte* const address = block->bytes().data();
  return {address, [pool = shared_from_this(), block](std::byte*) { pool->give_back(block); }};
}

void MemoryPool::give_back(PoolBlock block) noexcept {
  std::list<PoolBlock> dropped;  // Unmapped after the lock is released.
  std::lock_guard const lock(mutex_);
  num_free_bytes_ += block->bytes().size();
  free_.push_front(std::move(block));
  while (num_free_bytes_ > max_free_bytes_) {
    num_free_bytes_ -= free_.back()->bytes().size();
    blocks_.erase(free_.back()->bytes().data());
    dropped.splice(dropped.begin(), free_, std::prev(free_.end()));
  }
}

PoolBlock MemoryPool::find(std::span<std::byte const> memory) const {
  std::lock_guard const lock(mutex_);
  // Only the last block that begins at or before the memory can contain it.
  auto const after = blocks_.upper_bound(memory.data());
  if (after == blocks_.begin()) return nullptr;
  PoolBlock const& block = std::prev(after)->second;
  auto const offset = static_cast<std::size_t>(memory.data() - block->bytes().data());
  // Written without a sum, which could overflow.
  bool const is_inside = offset <= block->bytes().size() && memory.size() <= block->bytes().size() - offset;
  return is_inside ? block : nullptr;
}

std::shared_ptr<std::byte> allocate(std::size_t num_bytes) { return MemoryPool::shared().allocate(num_bytes); }

}  // namespace headway::comm
