// SPDX-License-Identifier: Apache-2.0

// Definitions for builds without CUDA: every entry point refuses. The operators link either way.

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <stdexcept>

namespace headway::kernels {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("hstu_attention: this build of Headway has no CUDA kernels (built without nvcc)");
}

}  // namespace

void hstu_attention_forward_async(HstuForwardArgs const& /*args*/, CudaStream /*stream*/, void* /*workspace*/) {
  refuse();
}
std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& /*args*/) { refuse(); }

void hstu_attention_backward_async(HstuBackwardArgs const& /*args*/, CudaStream /*stream*/, void* /*workspace*/) {
  refuse();
}
std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& /*args*/) { refuse(); }

HstuKernelChoice choose_hstu_kernels(HstuForwardArgs const& /*args*/) { refuse(); }
HstuKernelChoice choose_hstu_kernels(HstuBackwardArgs const& /*args*/) { refuse(); }

}  // namespace headway::kernels
