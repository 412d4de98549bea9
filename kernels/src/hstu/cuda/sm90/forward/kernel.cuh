// SPDX-License-Identifier: Apache-2.0
#pragma once

// HSTU attention on sm_90a, forward: O = SiLU(alpha * (Q K' + bias)) V * scale, with the mask of HstuSequenceMask.
//
// Idea: a persistent block of threads takes tiles of 128 queries of one head of a sequence. Its warps have roles:
//   warp 0        finds tiles (TileSchedule) and loads Q by TMA;
//   warp 1        loads the blocks of K and V that the mask lets the tile see (VisibleBlocks);
//   warps 2, 3    prepare the bias, each for every other block of keys (only with a bias);
//   warpgroups 1, 2 are consumers: 64 queries each. They compute S = Q K', then P = SiLU(S), then O += P V by wgmma;
//   warpgroup 3   looks up time biases ahead of the consumers (only with a bias; see TimeValues).
// A consumer issues S of the next block before P V of the present one and computes SiLU while P V runs. The two
// consumers alternate at the tensor cores (pingpong). There is no softmax, so partial results just add up: no row
// maximum, no rescaling of O.
//
// Example: causal, 300 queries and keys, dim 128, no bias. Tile 2 (queries 256 to 299) sees key blocks 0, 1 (whole) and
// 2 (masked). Its consumers issue S0; S1, PV0; S2, PV1; PV2. Before PV2 they clear rows 44 to 127 of the tile of V.
//
// Invariants: every stage in shared memory has a pair of mbarriers: full (the producer or TMA arrives) and empty (each
// consumer warp arrives). All roles visit tiles and blocks in the same order, so a ring position is never communicated.
// No wgmma group is in flight across the end of a loop or where branches meet: ptxas would serialise wgmma.
// Complexity: 4 * 128 * kBlockKeys * dim operations per visible block. Q is loaded once, K and V once per tile of
// queries.
// Source: HSTU: Zhai et al. 2024, equation 3. Pipeline: FlashAttention-3 (Shah et al. 2024), sections 3.1 and 3.2.

#include "cuda/dependent_launch.cuh"
#include "cuda/tensor_map.cuh"
#include "hstu/cuda/sm90/forward/bias.cuh"
#include "hstu/cuda/sm90/forward/consumer.cuh"
#include "hstu/cuda/sm90/forward/producer.cuh"

#include <cstdint>

namespace headway::kernels {

/// Initialises the mbarriers of Sm90ForwardState. All threads call it. Barriers that several warps release count them:
/// the consumers' warps, the producer warps that read the tile's description, and the warps that look up time biases.
template <class Shape>
__device__ __forceinline__ void init_forward_barriers(HstuBias const& bias) {
  auto& state = forward_state<Shape>();
  constexpr std::uint32_t kConsumerWarps = 4 * Shape::kConsumers, kReadingProducers = Shape::kHasBias ? 3 : 1;
  std::uint32_t const time_warps = bias.has_time() ? 4 : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kTileStages; ++i) {
      mbarrier_init(&state.tile_known[i], 1);
      mbarrier_init(&state.tile_empty[i], kConsumerWarps + kReadingProducers + time_warps);
    }
    for (int i = 0; i < Shape::kQueryStages; ++i) {
      mbarrier_init(&state.query_full[i], 1);
      mbarrier_init(&state.query_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < Shape::kKeyStages; ++i) {
      mbarrier_init(&state.key_full[i], 1);
      mbarrier_init(&state.key_empty[i], kConsumerWarps);
      mbarrier_init(&state.value_full[i], 1);
      mbarrier_init(&state.value_empty[i], kConsumerWarps);
    }
    if constexpr (Shape::kHasBias) {
      for (int i = 0; i < Shape::kBiasStages; ++i) {
        mbarrier_init(&state.bias_full[i], 1);
        mbarrier_init(&state.bias_empty[i], time_warps + kConsumerWarps);
      }
      for (int stage = 0; stage < Shape::kTimeStages; ++stage) {
        for (int i = 0; i < Shape::kConsumers; ++i) {
          mbarrier_init(&state.times_full[stage][i], 4);
          mbarrier_init(&state.times_empty[stage][i], 4);
        }
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
}

/// Kernel: one block of threads per multiprocessor, with the roles above. The block's registers are redistributed from
/// the producer warpgroup to the consumers.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    sm90_forward_kernel(__grid_constant__ Sm90ForwardMaps const maps,
                        __grid_constant__ Sm90ForwardParams const params) {
  init_forward_barriers<Shape>(params.bias);
  if (threadIdx.x == 0) {
    for (TensorMap const* map : {&maps.query, &maps.key, &maps.value}) prefetch_tensor_map(map);
  }
  wait_on_dependent_grids();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Shape::kProducerRegisters>();
    auto const warp = static_cast<int>(threadIdx.x / kWarpThreads);
    // A warp without a role falls through and ends; barriers count only the warps that take part.
    if (warp == 0) Sm90ForwardQueryProducer<Shape>(maps, params).run();
    if (warp == 1) Sm90ForwardKeyProducer<Shape>(maps).run();
    if constexpr (Shape::kHasBias) {
      if (warp >= 2) Sm90ForwardBiasProducer<Shape>(params, warp - 2).run();
    }
  } else if (threadIdx.x < 128 * (Shape::kConsumers + 1)) {
    warpgroup_reg_alloc<Shape::kConsumerRegisters>();
    Sm90ForwardConsumer<T, Shape>(params, this_warpgroup() - 1).run();
  } else {
    if constexpr (Shape::kHasBias) {
      warpgroup_reg_dealloc<Shape::kFinderRegisters>();
      if (params.bias.has_time()) Sm90ForwardBias<T, Shape>(params).run();
    }
  }
}

}  // namespace headway::kernels
