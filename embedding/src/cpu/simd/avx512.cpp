#include "cpu/simd/key_functions.hpp"

namespace headway::embedding {

KeyKernels avx512_key_kernels() { return key_kernels_of("avx512"); }

}  // namespace headway::embedding
