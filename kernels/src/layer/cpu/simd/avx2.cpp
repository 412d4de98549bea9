// SPDX-License-Identifier: Apache-2.0
#include "layer/cpu/simd/row_table.hpp"

namespace headway::kernels::layer {

// CMake compiles this file with -mavx2 -mfma; the name is only a label.
template <class Real>
RowKernels<Real> avx2_row_kernels() {
  return row_table_of<Real>("avx2");
}

template RowKernels<float> avx2_row_kernels<float>();
template RowKernels<double> avx2_row_kernels<double>();

}  // namespace headway::kernels::layer
