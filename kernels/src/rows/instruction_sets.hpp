// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/vector_kernels.hpp"

namespace headway::kernels::rows {

/// Function tables, all compiled from the same source by files in simd/ with flags of their own. The latter two exist
/// on x86-64 only.
[[nodiscard]] VectorKernels baseline_vector_kernels();
[[nodiscard]] VectorKernels avx2_vector_kernels();
[[nodiscard]] VectorKernels avx512_vector_kernels();

}  // namespace headway::kernels::rows
