// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headway::kernels {

#if defined(__x86_64__)

/// Does this processor have the instructions that files simd/avx2.cpp and simd/avx512.cpp are compiled for?
[[nodiscard]] inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

[[nodiscard]] inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#endif

}  // namespace headway::kernels
