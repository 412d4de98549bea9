// SPDX-License-Identifier: Apache-2.0
#include "codec/instruction_sets.hpp"
#include "codec/simd/half_block_functions.hpp"

namespace headway::kernels::codec {

// CMake compiles this file with -mavx2 -mfma -mf16c; the name is only a label.
HalfBlockKernels avx2_half_block_kernels() { return half_block_kernels_of("avx2"); }

}  // namespace headway::kernels::codec
