// SPDX-License-Identifier: Apache-2.0

// GpuMemory for builds without cuda.h; replaces gpu_memory.cpp.

#include "headway/comm/status.hpp"
#include "system/gpu_memory.hpp"

#include <cerrno>

namespace headway::comm {

void GpuMemory::look_for_driver() {}

bool GpuMemory::is_on_device(std::byte const* /*address*/) const { return false; }

DmaBuf GpuMemory::export_dma_buf(std::span<std::byte const> /*memory*/) const {
  throw SystemError("dma-buf export", ENOTSUP, "built without cuda.h");
}

}  // namespace headway::comm
