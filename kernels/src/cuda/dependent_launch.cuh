// SPDX-License-Identifier: Apache-2.0
#pragma once

// Programmatic dependent launch: a kernel may be launched while the kernel before it in the stream still runs, which
// hides the launch latency. It must call wait_on_dependent_grids() before it touches global memory.

#include "cuda/device.cuh"

// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if !defined(HEADWAY_DEVICE_EMULATOR)
#include "headway/base/cuda_check.hpp"
#include "headway/kernels/cuda_stream.hpp"
#endif

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Allows the next kernel in the stream to start once all blocks of this one have called this or ended.
__device__ __forceinline__ void launch_dependent_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernel before has ended and its writes are visible. Returns at once after an ordinary launch.
__device__ __forceinline__ void wait_on_dependent_grids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if !defined(HEADWAY_DEVICE_EMULATOR)

/// Launches a kernel that calls wait_on_dependent_grids(). Needs compute capability 9.0 or later.
template <class... Parameters>
void launch_dependent(void (*kernel)(Parameters...), char const* name, std::int64_t num_blocks, int num_threads,
                      std::uint32_t shared_bytes, CudaStream stream,
                      std::type_identity_t<Parameters> const&... values) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(num_threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  base::check_cuda(cudaLaunchKernelEx(&config, kernel, values...), name);
}

#endif

}  // namespace headway::kernels
