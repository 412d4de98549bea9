// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/peer_copy/memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace headway::comm::peer_copy {

/// A range of device memory that can be shared with peers.
struct SharedPart {
  std::shared_ptr<SharedSegment const> segment;  ///< Null if the memory cannot be shared.
  std::size_t offset = 0;
};

/// All device memory of this process that can be shared with peers, across groups. Thread-safe.
///
/// When a group fails, streams of peers may still write into outputs that they have mapped, and nothing can stop
/// them. quarantine() therefore hides all present allocations from find() for good: they stay allocated, but no later
/// operation exports them to a peer. Callers that cache such memory compare generation() and drop what is older.
///
/// Example: generation 0, allocation A. A group fails: generation 1. find(A) returns null from now on, find() of an
/// allocation made afterwards works.
class SharedMemory {
 public:
  static SharedMemory& of_process();

  /// Allocates on device `ordinal`. @returns 0 if the device is out of memory. @throws UsageError, SystemError.
  [[nodiscard]] CUdeviceptr allocate(int ordinal, std::size_t num_bytes);
  /// @throws UsageError if no allocation starts at `address`.
  void free(CUdeviceptr address);
  /// Finds the segment of `memory`. The segment is null if `memory` is not inside one allocation, or is quarantined.
  [[nodiscard]] SharedPart find(std::span<std::byte const> memory) const;
  /// Makes all present allocations invisible to find(). Calls no driver function.
  void quarantine() noexcept;

  /// Number of quarantines so far. Memory of an earlier generation is not found.
  [[nodiscard]] std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  /// Number of frees so far.
  [[nodiscard]] std::uint64_t num_freed() const { return num_freed_.load(std::memory_order_acquire); }

 private:
  struct Segment {
    std::shared_ptr<SharedSegment const> segment;
    std::uint64_t generation;
  };

  mutable std::mutex mutex_;
  std::map<CUdeviceptr, Segment> segments_;  ///< By their first address.
  std::atomic<std::uint64_t> generation_ = 0, num_freed_ = 0;
  std::atomic<std::size_t> count_ = 0;  ///< Number of segments. Zero is the common case.
};

}  // namespace headway::comm::peer_copy
