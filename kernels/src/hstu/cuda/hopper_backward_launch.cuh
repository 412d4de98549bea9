#pragma once

#include "cuda/cuda_check.hpp"
#include "cuda/dependent_launch.cuh"
#include "hstu/cuda/encode_map.hpp"
#include "hstu/cuda/hopper_backward.cuh"
#include "hstu/cuda/hopper_backward.hpp"
#include "hstu/cuda/hopper_backward_plan.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// TMA descriptors of a backward call.
template <class Shape>
[[nodiscard]] HopperBackwardMaps hopper_backward_maps(HstuBackwardArgs const& args) {
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

/// Launches the backward kernel, and convert_query_sums_kernel if dQ is in the workspace.
template <class T, class Shape>
void launch_hopper_backward(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  HstuForwardArgs const& forward = args.forward;
  static_assert(Shape::kBlockKeys == backward_block_keys(Shape::kDim));
  static_assert(Shape::kBlockQueries == kBackwardBlockQueries);
  int const num_multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  HopperBackwardWorkspace const places(forward, Shape::kWork, num_multiprocessors);
  auto* const kernel = &hopper_backward_kernel<T, Shape>;
  std::uint32_t const shared_bytes = hopper_backward_shared_bytes<Shape>(forward.bias);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "cudaFuncSetAttribute");
  HopperBackwardParams const params = hopper_backward_params(args, places, workspace);
  std::int64_t const num_pieces =
      Shape::kTakesSequences ? num_heads_of_sequences(forward) : most_key_tiles(forward, Shape::kBlockKeys);
  std::int64_t const num_blocks = std::min<std::int64_t>(num_pieces, num_multiprocessors);
  launch_dependent(kernel, "hopper_backward_kernel", num_blocks, Shape::kThreads, shared_bytes, stream,
                   hopper_backward_maps<Shape>(args), params);

  if constexpr (!Shape::kTakesSequences) {
    dim3 const tiles(static_cast<unsigned>(places.num_tiles), static_cast<unsigned>(forward.num_heads));
    convert_query_sums_kernel<T, Shape><<<tiles, 128, 0, stream>>>(params);
    check(cudaGetLastError(), "convert_query_sums_kernel");
  }
}

template <class T, int kDim, BackwardWork kWork>
void launch_hopper_backward_of(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  HstuBias const& bias = args.forward.bias;
  // Sequences of one tile have a configuration of their own only without a bias and for narrow rows, where it gains
  // time.
  constexpr BackwardWork kUsualWork = kWork == BackwardWork::kSequencesOfATile ? BackwardWork::kSequences : kWork;
  if constexpr (kDim == 256) {
    launch_hopper_backward<T, HopperWideBackwardShape<kUsualWork>>(args, stream, workspace);
  } else if (bias.has_position() || bias.has_time()) {
    launch_hopper_backward<T, HopperBackwardShape<kDim, true, kUsualWork>>(args, stream, workspace);
  } else {
    launch_hopper_backward<T, HopperBackwardShape<kDim, false, kWork>>(args, stream, workspace);
  }
}

template <int kDim>
void hopper_backward_of_dim(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  BackwardWork const work = backward_work(args.forward, device_attribute(cudaDevAttrMultiProcessorCount));
  auto const launch = [&]<class T>(T /*element*/) {
    if constexpr (takes_sequences(kDim)) {
      if (work == BackwardWork::kSequences) {
        return launch_hopper_backward_of<T, kDim, BackwardWork::kSequences>(args, stream, workspace);
      }
      if (work == BackwardWork::kSequencesOfATile) {
        return launch_hopper_backward_of<T, kDim, BackwardWork::kSequencesOfATile>(args, stream, workspace);
      }
    }
    launch_hopper_backward_of<T, kDim, BackwardWork::kTiles>(args, stream, workspace);
  };
  args.forward.type == ElementType::kBfloat16 ? launch(Bfloat16{}) : launch(Float16{});
}

}  // namespace headway::kernels
