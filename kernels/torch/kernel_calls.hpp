#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/run_tasks.hpp"
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
inline RunTasks torch_tasks() {
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
