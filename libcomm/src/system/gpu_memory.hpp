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

/// A dma-buf and the `offset` in bytes of the memory in it.
struct DmaBuf {
  base::FileDescriptor fd;
  std::uint64_t offset;
};

/// Recognises CUDA device memory and exports it as a dma-buf. Never loads or initialises the CUDA driver: only a
/// process that has done so itself can have such memory. Without cuda.h at build time, no memory counts as device
/// memory.
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
  /// Exports the host pages that contain `memory` as a dma-buf. `memory` is device memory inside one allocation. Any
  /// thread may call it.
  /// @throws SystemError that names the missing support of the driver or the device.
  [[nodiscard]] DmaBuf export_dma_buf(std::span<std::byte const> memory) const;

 private:
  [[nodiscard]] bool is_on_device(std::byte const* address) const;

  std::shared_ptr<base::CudaDriver const> driver_;  ///< Null if the process had not loaded one.
  unsigned long long num_libraries_seen_ = 0;       ///< Count of loaded libraries at the last look_for_driver().
};

}  // namespace headway::comm
