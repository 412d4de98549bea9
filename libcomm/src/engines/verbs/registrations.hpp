#pragma once

#include "engines/gpu_memory.hpp"
#include "engines/verbs/device.hpp"
#include "memory_pool.hpp"

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>

namespace headway::comm::verbs {

/// Memory that a device may use; it ends with the last who holds it.
using Registration = std::shared_ptr<ibv_mr>;

/// Registers payloads and outputs with one device. Blocks of allocate() stay registered, up to a limit: what is held
/// here stays mapped. Any other memory is registered while it is used and no longer, since nobody tells when it is
/// freed. Memory of a GPU is registered through a dma-buf.
class Registrations {
 public:
  Registrations(ibv_pd* domain, std::size_t limit_bytes) : domain_(domain), limit_bytes_(limit_bytes) {}

  /// What `memory` of allocate() stays registered with, where it is already or there is room; null: it is other memory,
  /// or cannot be registered.
  [[nodiscard]] Registration find_kept(std::span<std::byte const> memory);
  /// `access`: at least these rights (IBV_ACCESS_...). Null where the memory cannot be registered; refusal() says why.
  [[nodiscard]] Registration find_or_register(std::span<std::byte const> memory, int access);
  [[nodiscard]] std::string const& refusal() const { return refusal_; }
  /// Whether `memory` is on a GPU, as far as CUDA's driver was there when something was last registered, or at the
  /// beginning.
  [[nodiscard]] bool is_on_gpu(std::span<std::byte const> memory) const { return gpu_memory_.contains(memory); }
  /// Holds nothing any more.
  void clear();

 private:
  struct Kept {
    PoolBlock block;
    Registration registration;
  };

  [[nodiscard]] Registration register_memory(std::span<std::byte const> memory, int access);
  [[nodiscard]] ibv_mr* register_host_memory(std::span<std::byte const> memory, int access);
  [[nodiscard]] ibv_mr* register_gpu_memory(std::span<std::byte const> memory, int access);
  /// Null where the block does not fit, or cannot be registered. `may_drop_others`: to have room.
  [[nodiscard]] Registration keep(PoolBlock block, bool may_drop_others);
  /// Those of blocks that the pool has let go of.
  void drop_freed();
  void drop(std::list<Kept>::iterator kept);

  ibv_pd* domain_;
  std::size_t limit_bytes_, num_bytes_ = 0;
  std::list<Kept> kept_;  ///< Latest use first.
  GpuMemory gpu_memory_;
  std::string refusal_;
};

}  // namespace headway::comm::verbs
