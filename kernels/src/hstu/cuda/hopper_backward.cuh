#pragma once

// Backward pass on sm_90a. A block of threads takes a tile of keys and values and goes through the queries that see it:
// one warp brings tiles (TMA), two warpgroups multiply (wgmma), a warp for each adds its sums for the gradients of
// queries to those in global memory, as floats; convert_query_sums_kernel makes gradients of these. Where sequences are
// short a block takes all tiles of a head of a sequence, in order, and makes gradients of queries itself
// (HopperOwnQuerySums). With a bias a fourth warp prepares it, and another warpgroup adds up those gradients of its
// weights that the two do not.

#include "cuda/dependent_launch.cuh"
#include "hstu/cuda/hopper_backward_consumer.cuh"
#include "hstu/cuda/hopper_backward_producer.cuh"
#include "hstu/cuda/hopper_bias_gradients.cuh"
#include "hstu/cuda/hopper_wide_backward_consumer.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

template <class Shape>
__device__ __forceinline__ void init_backward_barriers() {
  auto& state = backward_state<Shape>();
  constexpr std::uint32_t kComputingWarps = 4 * Shape::kConsumers, kReadingWarps = Shape::kThreads / kWarpThreads - 4;
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < Shape::kKeyStages; ++i) {
      KeyBarriers& keys = state.barriers_of({i, 0});
      init_barrier(&keys.keys_full, 1);
      init_barrier(&keys.keys_empty, kReadingWarps + (Shape::kHasBias ? 1 : 0));
      init_barrier(&keys.values_full, 1);
      init_barrier(&keys.values_empty, kComputingWarps);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      init_barrier(&state.queries_full[i], 1);
      init_barrier(&state.queries_empty[i], kComputingWarps);
      init_barrier(&state.grads_full[i], kComputingWarps);
      init_barrier(&state.grads_empty[i], kReadingWarps);
    }
    if constexpr (Shape::kHasBias) {
      for (Barrier& known : state.tile_known) init_barrier(&known, 1);
      for (int i = 0; i < Shape::kBiasStages; ++i) {
        init_barrier(&state.bias_full[i], 1);
        init_barrier(&state.bias_empty[i], kReadingWarps);
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    hopper_backward_kernel(__grid_constant__ HopperBackwardMaps const maps,
                           __grid_constant__ HopperBackwardParams const params) {
  init_backward_barriers<Shape>();
  if (threadIdx.x == 0) {
    for (TensorMap const* map : {&maps.query, &maps.grad_out, &maps.value, &maps.key}) prefetch_tensor_map(map);
  }
  wait_for_kernel_before();
  prepare_backward_time_table<Shape>(params);
  if (threadIdx.x < 128) {
    lower_registers<Shape::kProducerRegisters>();
    auto const warp = static_cast<int>(threadIdx.x / kWarpThreads);
    if (warp == 0) HopperBackwardProducer<Shape>(maps, params).run();
    if constexpr (!Shape::kIsWide && !Shape::kTakesSequences) {
      if (warp == 1 || warp == 2) add_query_sums<Shape>(params, warp - 1);
    }
    if constexpr (Shape::kHasBias) {
      if (warp == 3) HopperBackwardBiasProducer<Shape>(params).run();
    }
  } else if (threadIdx.x < 128 * (Shape::kConsumers + 1)) {
    raise_registers<Shape::kConsumerRegisters>();
    using Consumer =
        std::conditional_t<Shape::kIsWide, HopperWideBackwardConsumer<T, Shape>, HopperBackwardConsumer<T, Shape>>;
    Consumer(params, this_warpgroup() - 1).run();
  } else {
    if constexpr (Shape::kHasBias) {
      lower_registers<Shape::kGradientRegisters>();
      HopperBiasGradients<T, Shape>(params).run();
    }
  }
}

/// Gradients of queries from their sums. A block of 128 threads for each tile of queries and head.
template <class T, class Shape>
__global__ void __launch_bounds__(128) convert_query_sums_kernel(HopperBackwardParams const params) {
  std::int64_t const tile = blockIdx.x;
  std::int64_t const* const offsets = params.sequences.query_offsets;
  std::int64_t low = 0, high = params.sequences.num_sequences;  // The last sequence whose first tile is not behind it.
  while (high - low > 1) {
    std::int64_t const middle = (low + high) / 2;
    bool const is_behind = first_query_tile(__ldg(offsets + middle), middle, Shape::kBlockQueries) > tile;
    (is_behind ? high : low) = middle;
  }
  auto const sequence = static_cast<std::int32_t>(low);
  SequenceView const view(params.sequences, params.mask, sequence);
  auto const first_query = static_cast<std::int32_t>(
      (tile - first_query_tile(view.first_query_row, low, Shape::kBlockQueries)) * Shape::kBlockQueries);
  if (first_query >= view.mask.num_queries) return;

  auto const head = static_cast<std::int32_t>(blockIdx.y);
  FragmentPlace const place(first_query);
  float const scale = scale_of_weights(params, view.mask.num_keys);
  OutputRows output(params.grad_query, view.first_query_row, head, place, view.mask.num_queries,
                    scale * params.half_alpha);
  auto const* part = reinterpret_cast<float4 const*>(params.query_sums) +
                     (tile * params.num_heads + head) * (Shape::kBlockQueries * Shape::kDim / 4) + threadIdx.x;
#pragma unroll
  for (int half = 0; half < Shape::kDim / Shape::kQuerySumColumns; ++half) {
    float sums[Shape::kQuerySumColumns / 2];
#pragma unroll
    for (int i = 0; i < Shape::kQuerySumColumns / 8; ++i) {
      float4 const four = __ldg(part + 128 * i);
      sums[4 * i] = four.x;
      sums[4 * i + 1] = four.y;
      sums[4 * i + 2] = four.z;
      sums[4 * i + 3] = four.w;
    }
    store_rows<T>(sums, output);
    part += Shape::kQuerySums / 4;
    output.data += Shape::kQuerySumColumns;
  }
}

}  // namespace headway::kernels
