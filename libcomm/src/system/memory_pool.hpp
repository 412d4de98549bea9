// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "system/anonymous_mapping.hpp"

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace headway::comm {

/// A block of allocate(). Holding it keeps the memory mapped, but the block may be freed and handed out again.
using PoolBlock = std::shared_ptr<AnonymousMapping const>;

/// Pool behind allocate(): blocks in use, and freed blocks that wait for the next allocation. Thread-safe.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  /// `max_free_bytes`: limit on freed memory that is kept.
  explicit MemoryPool(std::size_t max_free_bytes) : max_free_bytes_(max_free_bytes) {}
  /// The pool of this process.
  static MemoryPool& shared();

  /// See allocate() in memory.hpp.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t num_bytes);
  /// Block that contains all of `memory`. Null if the memory is not from this pool, or the pool has dropped the block.
  [[nodiscard]] PoolBlock find(std::span<std::byte const> memory) const;

 private:
  /// Keeps a freed block, and drops the least recently freed ones above the limit.
  void give_back(PoolBlock block) noexcept;

  std::size_t max_free_bytes_;
  /// Guards the members below.
  mutable std::mutex mutex_;
  std::map<std::byte const*, PoolBlock> blocks_;  ///< Blocks in use and freed blocks, by address.
  std::list<PoolBlock> free_;                     ///< Freed blocks, latest first.
  std::size_t num_free_bytes_ = 0;
};

}  // namespace headway::comm
