// SPDX-License-Identifier: Apache-2.0

// Definitions for builds without CUDA: every entry point refuses. So the torch operators link in any build, and a
// CUDA tensor gets an error that says what is missing.

#include "headway/kernels/gated_norm.hpp"
#include "headway/kernels/silu_split.hpp"

#include <stdexcept>

namespace headway::kernels {

namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error(
      "this build of Headway has no kernels of layers for CUDA devices: nvcc was not found when it was built");
}

}  // namespace

void gated_norm_async(GatedNorm const& /*args*/, void* /*out*/, void* /*statistics*/, CudaStream /*stream*/) {
  refuse();
}

void gated_norm_backward_async(GatedNormBackward const& /*args*/, void* /*scratch*/, CudaStream /*stream*/) {
  refuse();
}

std::int64_t gated_norm_backward_scratch_bytes(GatedNormBackward const& /*args*/) { refuse(); }

void silu_split_async(SiluSplit const& /*args*/, CudaStream /*stream*/) { refuse(); }

void silu_split_backward_async(SiluSplitBackward const& /*args*/, void* /*scratch*/, CudaStream /*stream*/) {
  refuse();
}

std::int64_t silu_split_backward_scratch_bytes(SiluSplitBackward const& /*args*/) { refuse(); }

}  // namespace headway::kernels
