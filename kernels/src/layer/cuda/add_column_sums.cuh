// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"
#include "headway/kernels/cuda_stream.hpp"
#include "layer/cuda/column_sums.cuh"

namespace headway::kernels {

/// Launches add_column_sums_kernel().
/// Grid: (columns / 32, sums wanted). Without the second output one row of blocks suffices.
template <class RealType, class Out>
void add_column_sums(ColumnSums<RealType, Out> const& args, CudaStream stream) {
  auto const num_blocks = static_cast<unsigned>((args.num_columns + kWarpThreads - 1) / kWarpThreads);
  unsigned const num_outs = args.outs[1] == nullptr ? 1 : 2;
  constexpr int kThreads = kWarpThreads * ColumnSums<RealType, Out>::kGroups;
  add_column_sums_kernel<<<dim3(num_blocks, num_outs), kThreads, 0, stream>>>(args);
  base::check_cuda(cudaGetLastError(), "add_column_sums_kernel");
}

}  // namespace headway::kernels
