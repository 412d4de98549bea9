#pragma once

#include "cuda/cuda_check.hpp"
#include "cuda/dependent_launch.cuh"
#include "hstu/cuda/encode_map.hpp"
#include "hstu/cuda/hopper_forward.cuh"
#include "hstu/cuda/hopper_forward.hpp"
#include "hstu/cuda/hopper_forward_plan.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Launches the forward kernel with one block of threads per multiprocessor at most.
template <class T, class Shape>
void launch_hopper_forward(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken) {
  std::int64_t const num_tiles = most_query_tiles(args, Shape::kBlockQueries);
  std::int64_t const num_blocks = std::min<std::int64_t>(num_tiles, device_attribute(cudaDevAttrMultiProcessorCount));
  bool const takes_more = num_tiles > num_blocks;
  // Runtime calls come first: they make the device's context current, which the driver call in encode_map() needs.
  auto* const kernel = &hopper_forward_kernel<T, Shape>;
  std::uint32_t const shared_bytes = hopper_forward_shared_bytes<Shape>(args.bias);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "cudaFuncSetAttribute");
  auto const map = [&args](JaggedHeads<void const*> const& rows, std::int64_t tokens, int tile_rows) {
    return encode_map({rows, tokens, args.num_heads, Shape::kDim, tile_rows});
  };
  HopperForwardMaps const maps{map(args.query, args.sequences.num_queries, Shape::kBlockQueries),
                               map(args.key, args.sequences.num_keys, Shape::kBlockKeys),
                               map(args.value, args.sequences.num_keys, Shape::kBlockKeys)};
  launch_dependent(kernel, "hopper_forward_kernel", num_blocks, Shape::kThreads, shared_bytes, stream, maps,
                   hopper_forward_params(args, takes_more ? tiles_taken : nullptr));
}

template <int kDim>
void hopper_forward_of_dim(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken) {
  bool const has_bias = args.bias.has_position() || args.bias.has_time();
  auto const launch = [&]<class T>(T /*element*/) {
    if (has_bias) {
      launch_hopper_forward<T, HopperForwardShape<kDim, true>>(args, stream, tiles_taken);
    } else {
      launch_hopper_forward<T, HopperForwardShape<kDim, false>>(args, stream, tiles_taken);
    }
  };
  args.type == ElementType::kBfloat16 ? launch(Bfloat16{}) : launch(Float16{});
}

}  // namespace headway::kernels
