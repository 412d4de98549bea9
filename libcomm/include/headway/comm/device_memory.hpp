// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace headway::comm {

/// Allocates memory of CUDA device `ordinal` that peers on this host can map. If a receiver's host starts an all-to-all
/// or collective before the sender's, blocks above 64 KiB are copied by the sender directly into an output in such
/// memory: no copy inside the receiving device. Free it with free_device_memory(). It is meant for allocators, which
/// take large segments. Thread-safe.
/// @throws UsageError if this process does not use CUDA or the build has no CUDA.
/// @throws SystemError if the driver refuses a call.
/// @returns null if the device is out of memory.
[[nodiscard]] void* allocate_device_memory(int ordinal, std::size_t num_bytes);

/// Waits until the device has finished all enqueued work, then frees the memory. Peers learn of it when their group
/// next starts an operation. No pending operation may receive into the memory. @throws UsageError if the memory is not
/// from allocate_device_memory().
void free_device_memory(void* memory);

/// Counts how often memory of allocate_device_memory() became unsafe to reuse. When a group fails, streams of peers may
/// still write to the memory that existed then. That memory stays allocated, but it is not handed out again. A caller
/// that caches such memory must drop what it cached under an earlier count.
[[nodiscard]] std::uint64_t device_memory_generation();

}  // namespace headway::comm
