#pragma once

#include "cuda/device.cuh"

#include <cstdint>

namespace headway::kernels {

/// Transposes a 4x4 matrix of words over four neighbouring lanes: afterwards word i of lane t is the former word t of
/// lane i. It takes 4 shuffles.
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
