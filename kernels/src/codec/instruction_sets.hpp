// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/half_blocks.hpp"

namespace headway::kernels::codec {

/// Function tables, all compiled from the same source by files in simd/ with flags of their own. The latter two exist
/// on x86-64 only.
[[nodiscard]] HalfBlockKernels baseline_half_block_kernels();
[[nodiscard]] HalfBlockKernels avx2_half_block_kernels();
[[nodiscard]] HalfBlockKernels avx512_half_block_kernels();

}  // namespace headway::kernels::codec
