#pragma once

#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

namespace headway::embedding {

/// Calls a CUB algorithm twice: once to query the size of its scratch memory, once to run it.
/// @param algorithm (scratch, bytes) -> cudaError_t
template <class Algorithm>
void run_with_scratch(char const* name, cudaStream_t stream, Algorithm const& algorithm) {
  std::size_t num_bytes = 0;
  check(algorithm(nullptr, num_bytes), name);
  num_bytes = std::max<std::size_t>(num_bytes, 1);  // With nullptr, CUB would only report the size again.
  DeviceBuffer<std::byte> const scratch(num_bytes, stream);
  check(algorithm(scratch.data(), num_bytes), name);
}

}  // namespace headway::embedding
