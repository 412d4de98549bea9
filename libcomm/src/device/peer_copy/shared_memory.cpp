// SPDX-License-Identifier: Apache-2.0

// Device memory of allocate_device_memory(), which this process can export to peers; shared_memory.hpp explains its
// quarantine after a failure.

#include "device/peer_copy/shared_memory.hpp"

#include "device/peer_copy/streams.hpp"
#include "headway/comm/device_memory.hpp"
#include "headway/comm/status.hpp"

#include <iterator>
#include <utility>

namespace headway::comm {

namespace peer_copy {

SharedMemory& SharedMemory::of_process() {
  static auto* const memory = new SharedMemory;  // Never destroyed: allocators free their memory at process exit.
  return *memory;
}

CUdeviceptr SharedMemory::allocate(int ordinal, std::size_t num_bytes) {
  try {
    auto segment = std::make_shared<SharedSegment>(Context::open(ordinal), num_bytes);
    auto const address = segment->memory.address();
    std::lock_guard const lock(mutex_);
    segments_[address] = {.segment = std::move(segment), .generation = generation()};
    count_ = segments_.size();
    return address;
  } catch (OutOfDeviceMemory const&) {
    return 0;
  }
}

void SharedMemory::free(CUdeviceptr address) {
  std::map<CUdeviceptr, Segment>::node_type freed;  // Released after the lock.
  {
    std::lock_guard const lock(mutex_);
    freed = segments_.extract(address);
    count_ = segments_.size();
  }
  expects(!freed.empty(), "no device memory that peers can write to begins there");
  // After this, peers are done with the memory too and may be told that it is gone.
  freed.mapped().segment->memory.wait_for_device();
  freed = {};
  num_freed_.fetch_add(1, std::memory_order_release);
}

SharedPart SharedMemory::find(std::span<std::byte const> memory) const {
  // Most processes use no such memory: they pay one load here, not a lock.
  if (count_ == 0) return {};
  auto const address = address_of(memory);
  std::lock_guard const lock(mutex_);
  auto const next = segments_.upper_bound(address);
  if (next == segments_.begin()) return {};
  auto const& [begin, found] = *std::prev(next);
  bool const is_inside = address + memory.size() <= begin + found.segment->memory.num_bytes();
  if (!is_inside || found.generation != generation()) return {};
  return {.segment = found.segment, .offset = address - begin};
}

void SharedMemory::quarantine() noexcept {
  std::lock_guard const lock(mutex_);
  generation_.fetch_add(1, std::memory_order_release);
}

}  // namespace peer_copy

void* allocate_device_memory(int ordinal, std::size_t num_bytes) {
  return reinterpret_cast<void*>(peer_copy::SharedMemory::of_process().allocate(ordinal, num_bytes));
}

void free_device_memory(void* memory) {
  peer_copy::SharedMemory::of_process().free(reinterpret_cast<CUdeviceptr>(memory));
}

std::uint64_t device_memory_generation() { return peer_copy::SharedMemory::of_process().generation(); }

}  // namespace headway::comm
