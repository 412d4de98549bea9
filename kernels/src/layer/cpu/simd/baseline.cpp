// SPDX-License-Identifier: Apache-2.0
#include "layer/cpu/simd/row_table.hpp"

namespace headway::kernels::layer {

// CMake compiles this file for the instruction set that all processors of the architecture have.
template <class Real>
RowKernels<Real> baseline_row_kernels() {
  return row_table_of<Real>("baseline");
}

template RowKernels<float> baseline_row_kernels<float>();
template RowKernels<double> baseline_row_kernels<double>();

}  // namespace headway::kernels::layer
