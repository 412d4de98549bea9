// SPDX-License-Identifier: Apache-2.0
#include "hstu/cpu/instruction_sets.hpp"
#include "hstu/cpu/simd/pairs.hpp"
#include "hstu/cpu/simd/table.hpp"

namespace headway::kernels::hstu {

// CMake compiles this file with the flags of AVX-512 and -mavx512bf16; the name is only a label.
BlockKernels<Bfloat16Pair> avx512bf16_kernels() {
  BlockKernels<Bfloat16Pair> kernels = table_of<Bfloat16Pair>("avx512bf16");
  kernels.pair_rows = pair_rows;
  kernels.pair_columns = pair_columns;
  return kernels;
}

}  // namespace headway::kernels::hstu
