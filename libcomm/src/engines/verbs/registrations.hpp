#pragma once

#include "engines/verbs/device.hpp"
#include "memory_pool.hpp"

#include <cstddef>
#include <list>
#include <memory>
#include <span>

namespace headway::comm::verbs {

/// Memory that a device may use; it ends with the last who holds it.
using Registration = std::shared_ptr<ibv_mr>;

/// Registers payloads and outputs with one device. Blocks of allocate() stay registered, up to a limit: what is held
/// here stays mapped. Any other memory is registered while it is used and no longer, since nobody tells when it is
/// freed.
class Registrations {
 public:
  Registrations(ibv_pd* domain, std::size_t limit_bytes) : domain_(domain), limit_bytes_(limit_bytes) {}

  /// `access`: at least these rights (IBV_ACCESS_...). Null, with errno, where the memory cannot be registered.
  [[nodiscard]] Registration find_or_register(std::span<std::byte const> memory, int access);
  /// Holds nothing any more.
  void clear();

 private:
  struct Kept {
    PoolBlock block;
    Registration registration;
  };

  [[nodiscard]] Registration register_memory(std::span<std::byte const> memory, int access) const;
  /// Those of blocks that the pool has let go of.
  void drop_freed();
  void drop(std::list<Kept>::iterator kept);

  ibv_pd* domain_;
  std::size_t limit_bytes_, num_bytes_ = 0;
  std::list<Kept> kept_;  ///< Latest use first.
};

}  // namespace headway::comm::verbs
