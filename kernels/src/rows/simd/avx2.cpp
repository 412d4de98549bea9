// SPDX-License-Identifier: Apache-2.0
#include "rows/instruction_sets.hpp"
#include "rows/simd/vector_functions.hpp"

namespace headway::kernels::rows {

// CMake compiles this file with -mavx2 -mfma; the name is only a label.
VectorKernels avx2_vector_kernels() { return vector_kernels_of("avx2"); }

}  // namespace headway::kernels::rows
