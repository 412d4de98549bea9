#pragma once

// Forward pass on sm_90a. A warp brings tiles of queries to shared memory (TMA), one keys and values, and two prepare
// the bias; two warpgroups multiply them (wgmma), 64 queries each: the products of the next keys run before those with
// the present values, and weights are computed meanwhile. Partial sums over keys just add up, as there is no softmax.
// Where time biases lie in more than two buckets they are found by a warpgroup of their own.

#include "cuda/dependent_launch.cuh"
#include "cuda/tensor_map.cuh"
#include "hstu/cuda/hopper_forward_bias.cuh"
#include "hstu/cuda/hopper_forward_consumer.cuh"
#include "hstu/cuda/hopper_forward_producer.cuh"

#include <cstdint>

namespace headway::kernels {

template <class Shape>
__device__ __forceinline__ void init_forward_barriers(HstuBias const& bias) {
  auto& state = forward_state<Shape>();
  constexpr std::uint32_t kComputingWarps = 4 * Shape::kConsumers, kBringingWarps = Shape::kHasBias ? 3 : 1;
  std::uint32_t const time_warps = bias.has_time() ? 4 : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kTileStages; ++i) {
      init_barrier(&state.tile_known[i], 1);
      init_barrier(&state.tile_empty[i], kComputingWarps + kBringingWarps + time_warps);
    }
    for (int i = 0; i < Shape::kQueryStages; ++i) {
      init_barrier(&state.query_full[i], 1);
      init_barrier(&state.query_empty[i], kComputingWarps);
    }
    for (int i = 0; i < Shape::kKeyStages; ++i) {
      init_barrier(&state.key_full[i], 1);
      init_barrier(&state.key_empty[i], kComputingWarps);
      init_barrier(&state.value_full[i], 1);
      init_barrier(&state.value_empty[i], kComputingWarps);
    }
    if constexpr (Shape::kHasBias) {
      for (int i = 0; i < Shape::kBiasStages; ++i) {
        init_barrier(&state.bias_full[i], 1);
        init_barrier(&state.bias_empty[i], time_warps + kComputingWarps);
      }
      for (int stage = 0; stage < Shape::kTimeStages; ++stage) {
        for (int i = 0; i < Shape::kConsumers; ++i) {
          init_barrier(&state.times_full[stage][i], 4);
          init_barrier(&state.times_empty[stage][i], 4);
        }
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    hopper_forward_kernel(__grid_constant__ HopperForwardMaps const maps,
                          __grid_constant__ HopperForwardParams const params) {
  init_forward_barriers<Shape>(params.bias);
  if (threadIdx.x == 0) {
    for (TensorMap const* map : {&maps.query, &maps.key, &maps.value}) prefetch_tensor_map(map);
  }
  wait_for_kernel_before();
  if (threadIdx.x < 128) {
    lower_registers<Shape::kProducerRegisters>();
    auto const warp = static_cast<int>(threadIdx.x / kWarpThreads);
    if (warp == 0) HopperForwardQueryProducer<Shape>(maps, params).run();
    if (warp == 1) HopperForwardKeyProducer<Shape>(maps).run();
    if constexpr (Shape::kHasBias) {
      if (warp >= 2) HopperForwardBiasProducer<Shape>(params, warp - 2).run();
    }
  } else if (threadIdx.x < 128 * (Shape::kConsumers + 1)) {
    raise_registers<Shape::kConsumerRegisters>();
    HopperForwardConsumer<T, Shape>(params, this_warpgroup() - 1).run();
  } else {
    if constexpr (Shape::kHasBias) {
      lower_registers<Shape::kFinderRegisters>();
      if (params.bias.has_time()) HopperForwardBias<T, Shape>(params).run();
    }
  }
}

}  // namespace headway::kernels
