#pragma once

#include "engines/nvlink/memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace headway::comm::nvlink {

/// A part of device memory that peers can be given.
struct SharedPart {
  std::shared_ptr<SharedSegment const> segment;  ///< Null: it is not such memory.
  std::size_t offset = 0;
};

/// All device memory of this process that peers can be given, whatever group they are in. Thread-safe.
class SharedMemory {
 public:
  static SharedMemory& of_process();

  /// @returns 0 where the device has no memory left. @throws UsageError, SystemError.
  [[nodiscard]] CUdeviceptr allocate(int ordinal, std::size_t num_bytes);
  /// @throws UsageError: nothing was allocated there.
  void free(CUdeviceptr address);
  [[nodiscard]] SharedPart find(std::span<std::byte const> memory) const;
  /// From now on nothing that is there is found. Calls no driver.
  void quarantine() noexcept;

  [[nodiscard]] std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  /// How often something was freed.
  [[nodiscard]] std::uint64_t num_freed() const { return num_freed_.load(std::memory_order_acquire); }

 private:
  struct Segment {
    std::shared_ptr<SharedSegment const> segment;
    std::uint64_t generation;
  };

  mutable std::mutex mutex_;
  std::map<CUdeviceptr, Segment> segments_;  ///< By their first address.
  std::atomic<std::uint64_t> generation_ = 0, num_freed_ = 0;
  std::atomic<std::size_t> count_ = 0;  ///< Of segments: none is the common case.
};

}  // namespace headway::comm::nvlink
