// SPDX-License-Identifier: Apache-2.0

// How operators call kernels: errors become Python errors, tasks run on torch's threads, launches on torch's stream.
//
// The kernels know nothing of torch: they take pointers, an executor or a stream, and report wrong arguments by
// std::invalid_argument. Memory for temporary results comes from torch's allocator, by the size that a function named
// ..._scratch_bytes() or ..._workspace_bytes() tells. It may be freed when the call returns, although the kernel
// still runs: the allocator reuses it only for later work of the same stream.

#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/executor.hpp"
#include "torch_headers.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <stdexcept>

namespace headway::kernels {

/// Calls a kernel; std::invalid_argument becomes a ValueError.
template <class Call>
void call_kernel(Call const& call) {
  try {
    call();
  } catch (std::invalid_argument const& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

/// Runs tasks on torch's intra-op threads. Other threads would compete for cores with these while they spin for work.
inline Executor torch_executor() {
  return [](std::int64_t count, Task const& task) {
    at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) task(i);
    });
  };
}

/// Torch's current stream of a CUDA device.
inline CudaStream current_stream(at::Device device) {
  auto const stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return static_cast<CudaStream>(stream.native_handle());
}

}  // namespace headway::kernels
