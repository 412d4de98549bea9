// SPDX-License-Identifier: Apache-2.0

// Launch of the forward kernel on sm_90a.

#pragma once

#include "cuda/dependent_launch.cuh"
#include "headway/base/cuda_check.hpp"
#include "hstu/cuda/sm90/attention.hpp"
#include "hstu/cuda/sm90/encode_map.hpp"
#include "hstu/cuda/sm90/forward/kernel.cuh"
#include "hstu/cuda/sm90/forward/plan.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Launches the forward kernel with one block of threads per multiprocessor at most.
/// @param tiles_taken counter in device memory, 0 at first; used only if a block of threads takes more than one tile
template <class T, class Shape>
void launch_sm90_forward(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken) {
  std::int64_t const num_tiles = max_query_tiles(args, Shape::kBlockQueries);
  std::int64_t const num_blocks =
      std::min<std::int64_t>(num_tiles, base::device_attribute(cudaDevAttrMultiProcessorCount));
  bool const takes_more = num_tiles > num_blocks;
  // Runtime calls come first: they make the device's context current, which the driver call in encode_map() needs.
  auto* const kernel = &sm90_forward_kernel<T, Shape>;
  std::uint32_t const shared_bytes = sm90_forward_shared_bytes<Shape>(args.bias);
  base::check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
      "cudaFuncSetAttribute");
  auto const map = [&args](JaggedHeads<void const*> const& rows, std::int64_t tokens, int tile_rows) {
    return encode_map({rows, tokens, args.num_heads, Shape::kDim, tile_rows});
  };
  Sm90ForwardMaps const maps{map(args.query, args.sequences.num_queries, Shape::kBlockQueries),
                             map(args.key, args.sequences.num_keys, Shape::kBlockKeys),
                             map(args.value, args.sequences.num_keys, Shape::kBlockKeys)};
  launch_dependent(kernel, "sm90_forward_kernel", num_blocks, Shape::kThreads, shared_bytes, stream, maps,
                   sm90_forward_params(args, takes_more ? tiles_taken : nullptr));
}

template <int kDim>
void sm90_forward_of_dim(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken) {
  bool const has_bias = args.bias.has_position() || args.bias.has_time();
  auto const launch = [&]<class T>(T /*element*/) {
    if (has_bias) {
      launch_sm90_forward<T, Sm90ForwardShape<kDim, true>>(args, stream, tiles_taken);
    } else {
      launch_sm90_forward<T, Sm90ForwardShape<kDim, false>>(args, stream, tiles_taken);
    }
  };
  args.type == ElementType::kBfloat16 ? launch(Bfloat16{}) : launch(Float16{});
}

}  // namespace headway::kernels
