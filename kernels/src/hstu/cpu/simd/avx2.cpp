// SPDX-License-Identifier: Apache-2.0
#include "hstu/cpu/instruction_sets.hpp"
#include "hstu/cpu/simd/table.hpp"

namespace headway::kernels::hstu {

// CMake compiles this file with -mavx2 -mfma; the name is only a label.
template <class Real>
BlockKernels<Real> avx2_kernels() {
  return table_of<Real>("avx2");
}

template BlockKernels<float> avx2_kernels<float>();
template BlockKernels<double> avx2_kernels<double>();

}  // namespace headway::kernels::hstu
