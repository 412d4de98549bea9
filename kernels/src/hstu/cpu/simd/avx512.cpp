// SPDX-License-Identifier: Apache-2.0
#include "hstu/cpu/instruction_sets.hpp"
#include "hstu/cpu/simd/table.hpp"

namespace headway::kernels::hstu {

// CMake compiles this file with the flags of AVX-512; the name is only a label.
template <class Real>
BlockKernels<Real> avx512_kernels() {
  return table_of<Real>("avx512");
}

template BlockKernels<float> avx512_kernels<float>();
template BlockKernels<double> avx512_kernels<double>();

}  // namespace headway::kernels::hstu
