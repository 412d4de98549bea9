// SPDX-License-Identifier: Apache-2.0
#include "rows/instruction_sets.hpp"
#include "rows/simd/vector_functions.hpp"

namespace headway::kernels::rows {

VectorKernels avx512_vector_kernels() { return vector_kernels_of("avx512"); }

}  // namespace headway::kernels::rows
