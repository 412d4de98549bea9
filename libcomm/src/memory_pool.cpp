#include "memory_pool.hpp"

#include "headway/comm/memory.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace headway::comm {

namespace {

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
    block = std::make_shared<LandingMemory const>(wanted);
    std::lock_guard const lock(mutex_);
    blocks_.emplace(block->bytes().data(), block);
  }
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
  auto const after = blocks_.upper_bound(memory.data());
  if (after == blocks_.begin()) return nullptr;
  PoolBlock const& block = std::prev(after)->second;
  auto const offset = static_cast<std::size_t>(memory.data() - block->bytes().data());
  bool const is_inside = offset <= block->bytes().size() && memory.size() <= block->bytes().size() - offset;
  return is_inside ? block : nullptr;
}

std::shared_ptr<std::byte> allocate(std::size_t num_bytes) { return MemoryPool::shared().allocate(num_bytes); }

}  // namespace headway::comm
