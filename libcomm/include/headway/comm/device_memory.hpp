#pragma once

#include <cstddef>
#include <cstdint>

namespace headway::comm {

/// Memory of CUDA device `ordinal` that peers on the host can write to: blocks above 64 KiB of all-to-alls and
/// collectives are copied into an output there by their senders, if these come to the operation after the receiver, and
/// then nothing is copied inside a device. To be freed with free_device_memory(). For allocators, which take large
/// parts. Thread-safe.
/// @throws UsageError: this process does not use CUDA, or the build has none; SystemError.
/// @returns null where the device has no memory left.
[[nodiscard]] void* allocate_device_memory(int ordinal, std::size_t num_bytes);

/// Waits until the device is done with all that was enqueued, and frees it; peers are told when their group starts
/// something again. No operation may be pending that receives into it. @throws UsageError: it was not allocated so.
void free_device_memory(void* memory);

/// Counts how often such memory became unsafe to use again: when a group fails, streams of peers may still write to
/// what was there by then. That memory stays, but nobody is given it any more; who reuses memory, as a pool does, is to
/// drop what it has of an earlier count.
[[nodiscard]] std::uint64_t device_memory_generation();

}  // namespace headway::comm
