// SPDX-License-Identifier: Apache-2.0
#include "rows/instruction_sets.hpp"
#include "rows/simd/vector_functions.hpp"

namespace headway::kernels::rows {

// CMake compiles this file with the flags of AVX-512; the name is only a label.
VectorKernels avx512_vector_kernels() { return vector_kernels_of("avx512"); }

}  // namespace headway::kernels::rows
