// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hstu/cpu/block_kernels.hpp"

namespace headway::kernels::hstu {

/// Function tables, all compiled from the same source by files in simd/ with flags of their own. All but the first
/// exist on x86-64 only.
template <class Real>
[[nodiscard]] BlockKernels<Real> baseline_kernels();
template <class Real>
[[nodiscard]] BlockKernels<Real> avx2_kernels();
template <class Real>
[[nodiscard]] BlockKernels<Real> avx512_kernels();
[[nodiscard]] BlockKernels<Bfloat16Pair> avx512bf16_kernels();

}  // namespace headway::kernels::hstu
