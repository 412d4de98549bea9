// SPDX-License-Identifier: Apache-2.0

// Launch of the backward kernel on sm_90a, and of the kernel that rounds dQ.

#pragma once

#include "cuda/dependent_launch.cuh"
#include "headway/base/cuda_check.hpp"
#include "hstu/cuda/sm90/attention.hpp"
#include "hstu/cuda/sm90/backward/kernel.cuh"
#include "hstu/cuda/sm90/backward/plan.hpp"
#include "hstu/cuda/sm90/encode_map.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// TMA descriptors of a backward call.
template <class Shape>
[[nodiscard]] Sm90BackwardMaps sm90_backward_maps(HstuBackwardArgs const& args) {
  HstuForwardArgs const& forward = args.forward;
  auto const map = [&forward](JaggedHeads<void const*> const& rows, std::int64_t tokens, int tile_rows) {
    return encode_map({rows, tokens, forward.num_heads, Shape::kDim, tile_rows});
  };
  // Without queries nothing is loaded through their descriptors, but TMA refuses empty tensors: use the keys.
  bool const has_queries = forward.sequences.num_queries > 0;
  std::int64_t const num_queries = has_queries ? forward.sequences.num_queries : 1;
  return {map(forward.key, forward.sequences.num_keys, Shape::kBlockKeys),
          map(forward.value, forward.sequences.num_keys, Shape::kBlockKeys),
          map(has_queries ? forward.query : forward.key, num_queries, Shape::kBlockQueries),
          map(has_queries ? args.grad_out : forward.key, num_queries, Shape::kBlockQueries)};
}

/// Launches the backward kernel, and convert_acc_dq_kernel if dQ is in the workspace.
template <class T, class Shape>
void launch_sm90_backward(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  HstuForwardArgs const& forward = args.forward;
  static_assert(Shape::kBlockKeys == backward_block_keys(Shape::kDim));
  static_assert(Shape::kBlockQueries == kBackwardBlockQueries);
  int const num_multiprocessors = base::device_attribute(cudaDevAttrMultiProcessorCount);
  Sm90BackwardWorkspace const layout(forward, Shape::kWork, num_multiprocessors);
  auto* const kernel = &sm90_backward_kernel<T, Shape>;
  std::uint32_t const shared_bytes = sm90_backward_shared_bytes<Shape>(forward.bias);
  base::check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
      "cudaFuncSetAttribute");
  Sm90BackwardParams const params = sm90_backward_params(args, layout, workspace);
  // A piece of work is what a block of threads takes at a time: a head of a sequence, or a tile of keys.
  std::int64_t const num_pieces =
      Shape::kTakesSequences ? num_heads_of_sequences(forward) : max_key_tiles(forward, Shape::kBlockKeys);
  std::int64_t const num_blocks = std::min<std::int64_t>(num_pieces, num_multiprocessors);
  launch_dependent(kernel, "sm90_backward_kernel", num_blocks, Shape::kThreads, shared_bytes, stream,
                   sm90_backward_maps<Shape>(args), params);

  if constexpr (!Shape::kTakesSequences) {
    dim3 const tiles(static_cast<unsigned>(layout.num_tiles), static_cast<unsigned>(forward.num_heads));
    convert_acc_dq_kernel<T, Shape><<<tiles, 128, 0, stream>>>(params);
    base::check_cuda(cudaGetLastError(), "convert_acc_dq_kernel");
  }
}

/// Chooses the compile-time shape for the bias and the width of rows.
template <class T, int kDim, BackwardWork kWork>
void launch_sm90_backward_of(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  HstuBias const& bias = args.forward.bias;
  // Sequences of one tile have a configuration of their own only without a bias and for narrow rows, where it gains
  // time.
  constexpr BackwardWork kUsualWork = kWork == BackwardWork::kSequencesOfATile ? BackwardWork::kSequences : kWork;
  if constexpr (kDim == 256) {
    launch_sm90_backward<T, Sm90WideBackwardShape<kUsualWork>>(args, stream, workspace);
  } else if (bias.has_position() || bias.has_time()) {
    launch_sm90_backward<T, Sm90BackwardShape<kDim, true, kUsualWork>>(args, stream, workspace);
  } else {
    launch_sm90_backward<T, Sm90BackwardShape<kDim, false, kWork>>(args, stream, workspace);
  }
}

template <int kDim>
void sm90_backward_of_dim(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  BackwardWork const work = backward_work(args.forward, base::device_attribute(cudaDevAttrMultiProcessorCount));
  auto const launch = [&]<class T>(T /*element*/) {
    if constexpr (takes_sequences(kDim)) {
      if (work == BackwardWork::kSequences) {
        return launch_sm90_backward_of<T, kDim, BackwardWork::kSequences>(args, stream, workspace);
      }
      if (work == BackwardWork::kSequencesOfATile) {
        return launch_sm90_backward_of<T, kDim, BackwardWork::kSequencesOfATile>(args, stream, workspace);
      }
    }
    launch_sm90_backward_of<T, kDim, BackwardWork::kTiles>(args, stream, workspace);
  };
  args.forward.type == ElementType::kBfloat16 ? launch(Bfloat16{}) : launch(Float16{});
}

}  // namespace headway::kernels
