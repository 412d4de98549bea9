#include "cpu/simd/key_functions.hpp"

namespace headway::embedding {

KeyKernels baseline_key_kernels() { return key_kernels_of("baseline"); }

}  // namespace headway::embedding
