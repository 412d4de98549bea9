#pragma once

#include "hstu/cpu/block_kernels.hpp"

namespace headway::kernels::hstu {

/// Compiled from the same source, each by its file in simd/ with flags of its own; all but the first on x86-64 alone.
template <class Real>
[[nodiscard]] BlockKernels<Real> baseline_kernels();
template <class Real>
[[nodiscard]] BlockKernels<Real> avx2_kernels();
template <class Real>
[[nodiscard]] BlockKernels<Real> avx512_kernels();
[[nodiscard]] BlockKernels<Bfloat16Pair> avx512bf16_kernels();

}  // namespace headway::kernels::hstu
