#pragma once

#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

namespace headway::embedding {

/// Calls an algorithm of CUB twice: it says how much scratch memory it needs, and then gets it.
/// @param algorithm (scratch, bytes) -> cudaError_t
template <class Algorithm>
void run_with_scratch(char const* name, cudaStream_t stream, Algorithm const& algorithm) {
  std::size_t num_bytes = 0;
  check(algorithm(nullptr, num_bytes), name);
  num_bytes = std::max<std::size_t>(num_bytes, 1);  // Without memory it would only say the size again.
  DeviceBuffer<std::byte> const scratch(num_bytes, stream);
  check(algorithm(scratch.data(), num_bytes), name);
}

}  // namespace headway::embedding
