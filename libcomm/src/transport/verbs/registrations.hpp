// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "system/gpu_memory.hpp"
#include "system/memory_pool.hpp"
#include "transport/verbs/device.hpp"

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>

namespace headway::comm::verbs {

/// Memory registered with a device. The last owner deregisters it.
using Registration = std::shared_ptr<ibv_mr>;

/// Registers payloads and outputs with one device. Blocks of allocate() stay registered up to a byte limit, and remain
/// mapped while they are cached here. Other memory is registered only while it is used, because nobody reports when it
/// is freed. GPU memory is registered through a dma-buf.
class Registrations {
 public:
  Registrations(ibv_pd* domain, std::size_t limit_bytes) : domain_(domain), limit_bytes_(limit_bytes) {}

  /// Cached registration of `memory` of allocate(), made now if there is room. Null if it is other memory or cannot be
  /// registered.
  [[nodiscard]] Registration find_kept(std::span<std::byte const> memory);
  /// Registration with at least the rights `access` (IBV_ACCESS_...). Null if that fails; refusal() then says why.
  [[nodiscard]] Registration find_or_register(std::span<std::byte const> memory, int access);
  [[nodiscard]] std::string const& refusal() const { return refusal_; }
  /// True if `memory` is on a GPU. Judged by the CUDA driver found at the last registration or at construction.
  [[nodiscard]] bool is_on_gpu(std::span<std::byte const> memory) const { return gpu_memory_.contains(memory); }
  /// Drops all cached registrations.
  void clear();

 private:
  /// A cached registration. Holding the block keeps it mapped, so its addresses cannot be reused.
  struct Kept {
    PoolBlock block;
    Registration registration;
  };

  [[nodiscard]] Registration register_memory(std::span<std::byte const> memory, int access);
  [[nodiscard]] ibv_mr* register_host_memory(std::span<std::byte const> memory, int access);
  [[nodiscard]] ibv_mr* register_gpu_memory(std::span<std::byte const> memory, int access);
  /// Caches the registration of `block`. Null if the block does not fit or cannot be registered. `may_drop_others`:
  /// evict the least recently used ones to make room.
  [[nodiscard]] Registration keep(PoolBlock block, bool may_drop_others);
  /// Drops registrations of blocks that the pool has freed.
  void drop_freed();
  void drop(std::list<Kept>::iterator kept);

  ibv_pd* domain_;
  std::size_t limit_bytes_, num_bytes_ = 0;
  std::list<Kept> kept_;  ///< Most recently used first.
  GpuMemory gpu_memory_;
  std::string refusal_;
};

}  // namespace headway::comm::verbs
