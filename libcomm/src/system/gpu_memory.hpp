// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace headway::base {
struct CudaDriver;
}

namespace headway::comm {

/// A dma-buf: a file descriptor for memory of a device.
struct DmaBuf {
  base::FileDescriptor fd;
  std::uint64_t offset;  ///< Byte of the dma-buf at which the exported memory begins.
};

/// Recognises CUDA device memory and exports it as a dma-buf. Never loads or initialises the CUDA driver: only a
/// process that has done so itself can have such memory. Without cuda.h at build time, no memory counts as device
/// memory.
///
/// Threads may share an object for const calls. look_for_driver() must not overlap any other call.
class GpuMemory {
 public:
  GpuMemory() { look_for_driver(); }

  /// Looks for a CUDA driver loaded since the last call. Cheap if the process has loaded no library since.
  void look_for_driver();
  /// True if the first byte of `memory` is device memory that the CPU cannot access. Managed memory gives false. Uses
  /// the driver found by the last look_for_driver(); without one it returns false after one branch.
  [[nodiscard]] bool contains(std::span<std::byte const> memory) const {
    return driver_ != nullptr && !memory.empty() && is_on_device(memory.data());
  }
  /// Exports `memory` as a dma-buf. The dma-buf covers `memory` extended to multiples of the host's page size.
  /// `memory` lies in one allocation of device memory. The calling thread needs no current CUDA context.
  /// @throws UsageError if contains(memory) is false, so also without a driver.
  /// @throws SystemError that names the missing support of the driver or the device.
  [[nodiscard]] DmaBuf export_dma_buf(std::span<std::byte const> memory) const;

 private:
  [[nodiscard]] bool is_on_device(std::byte const* address) const;

  std::shared_ptr<base::CudaDriver const> driver_;  ///< Null if the process had not loaded one.
  unsigned long long num_libraries_seen_ = 0;       ///< Count of loaded libraries at the last look_for_driver().
};

}  // namespace headway::comm
