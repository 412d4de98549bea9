// SPDX-License-Identifier: Apache-2.0

// Launches of the backward pass of gated normalisation: all rows (gated_norm_backward.cuh), then sums over blocks
// (column_sums.cuh). The grid has at most two blocks per multiprocessor, since each block leaves partial sums.

#include "headway/base/cuda_check.hpp"
#include "layer/cuda/add_column_sums.cuh"
#include "layer/cuda/gated_norm_backward.cuh"
#include "layer/expect_arguments.hpp"

namespace headway::kernels {

namespace {

/// Number of blocks: two per multiprocessor, or fewer if rows are few. The kernel's launch bounds make room for two at
/// a time, or for one if a thread keeps more than two packs.
template <class Shape>
std::int64_t num_blocks(std::int64_t num_rows) {
  std::int64_t const most = 2 * base::device_attribute(cudaDevAttrMultiProcessorCount);
  return std::min<std::int64_t>((num_rows + Shape::kRows - 1) / Shape::kRows, most);
}

/// Adds up the partial sums of the blocks for weight and bias.
template <class Number, class Out>
void add_sums(GatedNormBackward const& args, Number const* partials, std::int64_t num_partials, CudaStream stream) {
  std::int64_t const num_columns = args.forward.num_columns;
  add_column_sums<Number, Out>({.partials = partials,
                                .num_partials = num_partials,
                                .partial_stride = 2 * num_columns,
                                .num_columns = num_columns,
                                .outs = {static_cast<Out*>(args.grad_weight), static_cast<Out*>(args.grad_bias)}},
                               stream);
}

}  // namespace

std::int64_t gated_norm_backward_scratch_bytes(GatedNormBackward const& args) {
  std::int64_t bytes = 0;
  with_norm_shape(args, [&]<class Shape>() {
    auto const size = static_cast<std::int64_t>(sizeof(typename Shape::Number));
    bytes = num_blocks<Shape>(args.forward.num_rows) * 2 * args.forward.num_columns * size;
  });
  return args.grad_weight == nullptr && args.grad_bias == nullptr ? 0 : bytes;
}

void gated_norm_backward_async(GatedNormBackward const& args, void* scratch, CudaStream stream) {
  expect_arguments(args.forward);
  with_norm_shape(args, [&]<class Shape>() {
    using Number = typename Shape::Number;
    auto const params = gated_norm_backward_params<Shape>(args, scratch);
    std::int64_t const blocks = num_blocks<Shape>(args.forward.num_rows);
    if (blocks > 0) {
      gated_norm_backward_kernel<Shape><<<static_cast<unsigned>(blocks), kNormThreads, 0, stream>>>(params);
      base::check_cuda(cudaGetLastError(), "gated_norm_backward_kernel");
    }
    if (args.grad_weight == nullptr && args.grad_bias == nullptr) return;
    auto const* const partials = static_cast<Number const*>(scratch);
    if (args.forward.weight_type != args.forward.type) {
      add_sums<Number, Number>(args, partials, blocks, stream);
    } else {
      add_sums<Number, typename Shape::Element>(args, partials, blocks, stream);
    }
  });
}

}  // namespace headway::kernels
