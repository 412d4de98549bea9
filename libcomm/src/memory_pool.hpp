#pragma once

#include "engines/landing_memory.hpp"

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace headway::comm {

/// Memory of allocate(). Who holds a block keeps it mapped, though it may be freed and handed out again.
using PoolBlock = std::shared_ptr<LandingMemory const>;

/// What is behind allocate(): blocks that are handed out, and freed ones that wait for the next allocation.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  explicit MemoryPool(std::size_t max_free_bytes) : max_free_bytes_(max_free_bytes) {}
  /// The pool of this process.
  static MemoryPool& shared();

  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t num_bytes);
  /// The block that contains all of `memory`; null: it is not of this pool, or the pool has let go of it.
  [[nodiscard]] PoolBlock find(std::span<std::byte const> memory) const;

 private:
  void give_back(PoolBlock block) noexcept;

  std::size_t max_free_bytes_;
  mutable std::mutex mutex_;
  std::map<std::byte const*, PoolBlock> blocks_;  ///< By address: those that are handed out, and the free ones.
  std::list<PoolBlock> free_;                     ///< Latest first.
  std::size_t num_free_bytes_ = 0;
};

}  // namespace headway::comm
