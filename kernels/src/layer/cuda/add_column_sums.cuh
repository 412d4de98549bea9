#pragma once

#include "cuda/cuda_check.hpp"
#include "headway/kernels/cuda_stream.hpp"
#include "layer/cuda/column_sums.cuh"

namespace headway::kernels {

/// Launches add_column_sums_kernel().
template <class RealType, class Out>
void add_column_sums(ColumnSums<RealType, Out> const& args, CudaStream stream) {
  auto const num_blocks = static_cast<unsigned>((args.num_columns + kWarpThreads - 1) / kWarpThreads);
  unsigned const num_outs = args.outs[1] == nullptr ? 1 : 2;
  constexpr int kThreads = kWarpThreads * ColumnSums<RealType, Out>::kGroups;
  add_column_sums_kernel<<<dim3(num_blocks, num_outs), kThreads, 0, stream>>>(args);
  check(cudaGetLastError(), "add_column_sums_kernel");
}

}  // namespace headway::kernels
