// SPDX-License-Identifier: Apache-2.0

// Registration of memory with an RDMA device, and the cache of registrations for memory of allocate().
//
// Registering pins pages and takes tens of microseconds and more, so it is worth keeping. It is only safe to keep for
// memory whose release is known: a registration that outlives its memory would let the device write to whatever is
// mapped there next. MemoryPool knows when its blocks are freed; for all other memory nobody tells.

#include "transport/verbs/registrations.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

namespace headway::comm::verbs {

Registration Registrations::register_memory(std::span<std::byte const> memory, int access) {
  gpu_memory_.look_for_driver();
  ibv_mr* const region = is_on_gpu(memory) ? register_gpu_memory(memory, access) : register_host_memory(memory, access);
  return region == nullptr ? nullptr : Registration(region, Release<&Library::dereg_mr>());
}

ibv_mr* Registrations::register_host_memory(std::span<std::byte const> memory, int access) {
  ibv_mr* const region = library().reg_mr(domain_, const_cast<std::byte*>(memory.data()), memory.size(), access);
  if (region == nullptr) refusal_ = std::string(std::strerror(errno)) + "; see ulimit -l";
  return region;
}

// Remote keys refer to virtual addresses, as for host memory. The region keeps the dma-buf alive after its descriptor
// is closed.
ibv_mr* Registrations::register_gpu_memory(std::span<std::byte const> memory, int access) {
  try {
    if (library().reg_dmabuf_mr == nullptr) throw SystemError("ibv_reg_dmabuf_mr", ENOTSUP, "libibverbs is too old");
    DmaBuf const buffer = gpu_memory_.export_dma_buf(memory);
    auto const address = reinterpret_cast<std::uintptr_t>(memory.data());
    ibv_mr* const region =
        library().reg_dmabuf_mr(domain_, buffer.offset, memory.size(), address, buffer.fd.get(), access);
    if (region == nullptr) throw SystemError("ibv_reg_dmabuf_mr", errno, "memory of a GPU");
    return region;
  } catch (SystemError const& error) {
    refusal_ = error.what();
    return nullptr;
  }
}

Registration Registrations::find_kept(std::span<std::byte const> memory) {
  PoolBlock block = MemoryPool::shared().find(memory);
  return block ? keep(std::move(block), false) : nullptr;
}

Registration Registrations::find_or_register(std::span<std::byte const> memory, int access) {
  PoolBlock block = MemoryPool::shared().find(memory);
  auto kept = block ? keep(std::move(block), true) : nullptr;
  return kept ? kept : register_memory(memory, access);
}

Registration Registrations::keep(PoolBlock block, bool may_drop_others) {
  auto const found = std::ranges::find(kept_, block, &Kept::block);
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return found->registration;
  }
  // A block larger than the whole cache would evict everything and still not fit.
  std::size_t const size = block->bytes().size();
  if (size > limit_bytes_ || (!may_drop_others && num_bytes_ + size > limit_bytes_)) return nullptr;
  drop_freed();
  auto registration = register_memory(block->bytes(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!registration) return nullptr;
  while (num_bytes_ + size > limit_bytes_) drop(std::prev(kept_.end()));
  num_bytes_ += size;
  kept_.push_front({.block = std::move(block), .registration = registration});
  return registration;
}

void Registrations::clear() {
  kept_.clear();
  num_bytes_ = 0;
}

void Registrations::drop_freed() {
  for (auto it = kept_.begin(); it != kept_.end();) {
    auto const next = std::next(it);
    if (MemoryPool::shared().find(it->block->bytes()) != it->block) drop(it);
    it = next;
  }
}

void Registrations::drop(std::list<Kept>::iterator kept) {
  num_bytes_ -= kept->block->bytes().size();
  kept_.erase(kept);
}

}  // namespace headway::comm::verbs
