// SPDX-License-Identifier: Apache-2.0
#include "cpu/index/simd/key_functions.hpp"

namespace headway::embedding {

KeyKernels avx2_key_kernels() { return key_kernels_of("avx2"); }

}  // namespace headway::embedding
