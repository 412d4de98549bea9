// SPDX-License-Identifier: Apache-2.0

// Last stage of bias gradients on sm_80: the sum over blocks of threads, in order. There are at most 512 partials and
// few weights, so one thread per weight suffices, and its loads are coalesced with those of its neighbours.

#pragma once

#include "cuda/device.cuh"

#include <cstdint>

namespace headway::kernels {

/// Kernel: out[i] = sum over p of partials[p][i], in ascending order of p. One thread per i.
__global__ void sum_partials_kernel(float const* partials, std::int64_t num_partials, std::int64_t size, float* out) {
  std::int64_t const i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t p = 0; p < num_partials; ++p) sum += partials[p * size + i];
  out[i] = sum;
}

}  // namespace headway::kernels
