// SPDX-License-Identifier: Apache-2.0
#include "hstu/cpu/instruction_sets.hpp"
#include "hstu/cpu/simd/table.hpp"

namespace headway::kernels::hstu {

// CMake compiles this file for the instruction set that all processors of the architecture have.
template <class Real>
BlockKernels<Real> baseline_kernels() {
  return table_of<Real>("baseline");
}

template BlockKernels<float> baseline_kernels<float>();
template BlockKernels<double> baseline_kernels<double>();

}  // namespace headway::kernels::hstu
