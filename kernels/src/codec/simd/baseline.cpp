// SPDX-License-Identifier: Apache-2.0
#include "codec/instruction_sets.hpp"
#include "codec/simd/half_block_functions.hpp"

namespace headway::kernels::codec {

// CMake compiles this file for the instruction set that all processors of the architecture have; the name is only a
// label.
HalfBlockKernels baseline_half_block_kernels() { return half_block_kernels_of("baseline"); }

}  // namespace headway::kernels::codec
