// SPDX-License-Identifier: Apache-2.0

// Launch of the forward pass of gated normalisation; the kernel is in gated_norm.cuh.

#include "headway/base/cuda_check.hpp"
#include "layer/cuda/gated_norm.cuh"
#include "layer/expect_arguments.hpp"

namespace headway::kernels {

void gated_norm_async(GatedNorm const& args, void* out, void* statistics, CudaStream stream) {
  expect_arguments(args);
  if (args.num_rows == 0) return;
  with_norm_shape(args, out, [&]<class Shape>() {
    auto const num_blocks = static_cast<unsigned>((args.num_rows + Shape::kRows - 1) / Shape::kRows);
    gated_norm_kernel<Shape><<<num_blocks, kNormThreads, 0, stream>>>(gated_norm_params<Shape>(args, out, statistics));
  });
  base::check_cuda(cudaGetLastError(), "gated_norm_kernel");
}

}  // namespace headway::kernels
