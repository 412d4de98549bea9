#pragma once

#include "cuda/device.cuh"

#include <cstdint>

namespace headway::kernels {

/// Four neighbouring lanes exchange words: afterwards word i of lane t is what word t of lane i was.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    bool const is_upper = (threadIdx.x & static_cast<unsigned>(bit)) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      std::uint32_t const given = is_upper ? words[i] : words[i | bit];
      std::uint32_t const taken = __shfl_xor_sync(kAllLanes, given, bit);
      words[i | bit] = is_upper ? words[i | bit] : taken;
      words[i] = is_upper ? taken : words[i];
    }
  }
}

}  // namespace headway::kernels
