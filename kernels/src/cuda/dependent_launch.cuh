#pragma once

// A kernel may be launched while the one before it in the stream still runs: what a launch costs is then hidden behind
// that. It must wait for it before it touches global memory.

#include "cuda/device.cuh"

#if !defined(HEADWAY_DEVICE_EMULATOR)
#include "cuda/cuda_check.hpp"
#include "headway/kernels/cuda_stream.hpp"
#endif

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Lets the next kernel in the stream start when all blocks of this one have come here or ended.
__device__ __forceinline__ void start_dependent_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernel before has ended and what it wrote is there. Returns at once where the launch was an ordinary
/// one.
__device__ __forceinline__ void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if !defined(HEADWAY_DEVICE_EMULATOR)

/// Launches a kernel that calls wait_for_kernel_before(), on a GPU of compute capability 9.0 or later.
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
  check(cudaLaunchKernelEx(&config, kernel, values...), name);
}

#endif

}  // namespace headway::kernels
