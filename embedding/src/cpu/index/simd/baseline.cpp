// SPDX-License-Identifier: Apache-2.0
#include "cpu/index/simd/key_functions.hpp"

namespace headway::embedding {

KeyKernels baseline_key_kernels() { return key_kernels_of("baseline"); }

}  // namespace headway::embedding
