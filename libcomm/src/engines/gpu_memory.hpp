#pragma once

#include "file_descriptor.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace headway::comm {

struct CudaDriver;

/// Memory as other devices are told of it: `offset` bytes into a dma-buf.
struct DmaBuf {
  FileDescriptor fd;
  std::uint64_t offset;
};

/// Tells memory of CUDA devices from other memory and exports it. Neither loads CUDA's driver nor initialises it: only
/// a process that has done so itself can have such memory. In a build without cuda.h no memory is a device's.
class GpuMemory {
 public:
  GpuMemory() { look_for_driver(); }

  /// Sees a driver that this process has loaded since the last look. Cheap if it has loaded no library at all.
  void look_for_driver();
  /// Whether `memory` begins on a device, where no CPU may touch it; managed memory is not meant. As of the last look
  /// for a driver: false where there was none, which costs one branch.
  [[nodiscard]] bool contains(std::span<std::byte const> memory) const {
    return driver_ != nullptr && !memory.empty() && is_on_device(memory.data());
  }
  /// The host pages that hold `memory`, which lies on a device, in one allocation. The exporter may be any thread.
  /// @throws SystemError that says what the driver or the device does not support.
  [[nodiscard]] DmaBuf export_dma_buf(std::span<std::byte const> memory) const;

 private:
  [[nodiscard]] bool is_on_device(std::byte const* address) const;

  std::shared_ptr<CudaDriver const> driver_;  ///< Null: the process had loaded none.
  unsigned long long num_libraries_seen_ = 0;
};

}  // namespace headway::comm
