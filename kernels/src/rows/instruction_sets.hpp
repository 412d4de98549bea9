#pragma once

#include "headway/kernels/vector_kernels.hpp"

namespace headway::kernels::rows {

/// Compiled from the same source, each by its file in simd/ with flags of its own; the latter two on x86-64 alone.
[[nodiscard]] VectorKernels baseline_vector_kernels();
[[nodiscard]] VectorKernels avx2_vector_kernels();
[[nodiscard]] VectorKernels avx512_vector_kernels();

}  // namespace headway::kernels::rows
