#include "cpu/simd/key_functions.hpp"

namespace headway::embedding {

KeyKernels avx2_key_kernels() { return key_kernels_of("avx2"); }

}  // namespace headway::embedding
