// SPDX-License-Identifier: Apache-2.0
#include "layer/cpu/simd/row_table.hpp"

namespace headway::kernels::layer {

// CMake compiles this file with the flags of AVX-512; the name is only a label.
template <class Real>
RowKernels<Real> avx512_row_kernels() {
  return row_table_of<Real>("avx512");
}

template RowKernels<float> avx512_row_kernels<float>();
template RowKernels<double> avx512_row_kernels<double>();

}  // namespace headway::kernels::layer
