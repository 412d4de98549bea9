// SPDX-License-Identifier: Apache-2.0

// Launches of the SiLU split; silu_split.cuh has the kernels.

#include "headway/base/cuda_check.hpp"
#include "layer/cuda/add_column_sums.cuh"
#include "layer/cuda/silu_split.cuh"
#include "layer/expect_arguments.hpp"

namespace headway::kernels {

namespace {

SplitGrid grid_of(std::int64_t num_rows, std::int64_t num_columns, int pack_size) {
  // The grid has as many blocks as the device runs at the same time.
  return {num_rows, num_columns, pack_size,
          kSplitBlocks * std::int64_t{base::device_attribute(cudaDevAttrMultiProcessorCount)}};
}

}  // namespace

void silu_split_async(SiluSplit const& args, CudaStream stream) {
  expect_parts(args.parts);
  std::int64_t const num_columns = columns_of(args.parts);
  if (args.num_rows == 0 || num_columns == 0) return;
  with_pack(args.type, is_in_packs(args.type, args.x, args.parts), [&]<class Element, int kSize>() {
    SplitGrid const grid = grid_of(args.num_rows, num_columns, kSize);
    silu_split_kernel<Element, kSize>
        <<<dim3(grid.columns, grid.rows), kSplitWarps * kWarpThreads, 0, stream>>>(silu_split_params<Element>(args));
  });
  base::check_cuda(cudaGetLastError(), "silu_split_kernel");
}

std::int64_t silu_split_backward_scratch_bytes(SiluSplitBackward const& args) {
  std::int64_t const num_columns = columns_of(args.grad_parts);
  std::int64_t bytes = 0;
  with_pack(args.type, is_in_packs(args.type, args.x, args.grad_parts), [&]<class Element, int kSize>() {
    SplitGrid const grid = grid_of(args.num_rows, num_columns, kSize);
    bytes = grid.rows * num_columns * static_cast<std::int64_t>(sizeof(Real<Element>));
  });
  return bytes;
}

void silu_split_backward_async(SiluSplitBackward const& args, void* scratch, CudaStream stream) {
  expect_parts(args.grad_parts);
  std::int64_t const num_columns = columns_of(args.grad_parts);
  if (num_columns == 0) return;
  with_pack(args.type, is_in_packs(args.type, args.x, args.grad_parts), [&]<class Element, int kSize>() {
    SplitGrid const grid = grid_of(args.num_rows, num_columns, kSize);
    auto const params = silu_split_backward_params<Element>(args, scratch);
    silu_split_backward_kernel<Element, kSize>
        <<<dim3(grid.columns, grid.rows), kSplitWarps * kWarpThreads, 0, stream>>>(params);
    base::check_cuda(cudaGetLastError(), "silu_split_backward_kernel");
    add_column_sums<Real<Element>, Real<Element>>({.partials = params.partials,
                                                   .num_partials = grid.rows,
                                                   .partial_stride = num_columns,
                                                   .num_columns = num_columns,
                                                   .outs = {static_cast<Real<Element>*>(args.column_sums), nullptr}},
                                                  stream);
  });
}

}  // namespace headway::kernels
