// SPDX-License-Identifier: Apache-2.0
#include "rows/instruction_sets.hpp"
#include "rows/simd/vector_functions.hpp"

namespace headway::kernels::rows {

// CMake compiles this file for the instruction set that all processors of the architecture have.
VectorKernels baseline_vector_kernels() { return vector_kernels_of("baseline"); }

}  // namespace headway::kernels::rows
