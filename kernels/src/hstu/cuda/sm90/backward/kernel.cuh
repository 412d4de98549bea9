// SPDX-License-Identifier: Apache-2.0
#pragma once

// HSTU attention on sm_90a, backward: dQ, dK, dV and the gradients of bias weights.
//
// Idea: a block of threads takes a tile of 128 keys (64 for dim 256) and goes through the blocks of 64 queries that see
// it. Five products per block: S' = K Q', dP' = V dO', dV += P' dO, dK += dS' Q, dQ = dS K. A prime means transposed:
// scores have keys as rows, so P' and dS' are already register operands of the products for dV and dK. Roles:
//   warp 0          loads tiles of K and V, then blocks of Q and dO by TMA (Sm90BackwardProducer);
//   warps 1, 2      add the dQ of one consumer each from shared to global memory (kTiles, dim up to 128:
//   add_acc_dq);
//   warp 3          prepares the bias of the next blocks (Sm90BackwardBiasProducer);
//   warpgroups 1, 2 are consumers; each keeps dK and dV of 64 keys in registers (Sm90BackwardConsumer), or half of
//   their columns (Sm90WideBackwardConsumer);
//   warpgroup 3     adds up those gradients of bias weights that consumers leave to it (Sm90BiasGradients).
// dQ is computed one block late, so that a consumer does not wait for dS of the other one. It is added up in one of two
// ways. BackwardWork::kTiles: as float32 in the workspace, by atomic reductions; convert_acc_dq_kernel rounds it at
// the end. Short sequences: one block of threads takes all tiles of a head of a sequence, keeps dQ between them and
// stores it itself (SequenceAccDq).
//
// Example: causal, 300 tokens, dim 64, kTiles. Tile 2 (keys 256 to 299) is seen by query block 4 alone, tile 0 by
// blocks 0 to 4. The dQ of block 4 is the sum of contributions of the tiles 0, 1 and 2.
//
// Invariants: dK and dV of a tile have one owner. dQ has a fixed order of additions if `dq_semaphore` is set: a tile
// adds to a block of queries after all tiles with later keys that this block sees. These tiles were taken before it, by
// running blocks of threads, so nobody waits forever. Rows behind a sequence are cleared before wgmma reads them.
// Complexity: 10 * 64 * kBlockKeys * dim operations per visible block. float32 dQ in the workspace for kTiles.
// Source: FlashAttention-3 (Shah et al. 2024), section 3.1; the formulas are those of HSTU (Zhai et al. 2024, equation
// 3).

#include "cuda/dependent_launch.cuh"
#include "hstu/cuda/sm90/backward/bias_gradients.cuh"
#include "hstu/cuda/sm90/backward/consumer.cuh"
#include "hstu/cuda/sm90/backward/producer.cuh"
#include "hstu/cuda/sm90/backward/wide_consumer.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Initialises the mbarriers of Sm90BackwardState. All threads call it. Barriers that several warps release count
/// warps: the consumers (computing), or these and the warps for bias gradients (reading).
template <class Shape>
__device__ __forceinline__ void init_backward_barriers() {
  auto& state = backward_state<Shape>();
  constexpr std::uint32_t kComputingWarps = 4 * Shape::kConsumers, kReadingWarps = Shape::kThreads / kWarpThreads - 4;
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < Shape::kKeyStages; ++i) {
      KeyBarriers& keys = state.barriers_of({i, 0});
      mbarrier_init(&keys.keys_full, 1);
      mbarrier_init(&keys.keys_empty, kReadingWarps + (Shape::kHasBias ? 1 : 0));
      mbarrier_init(&keys.values_full, 1);
      mbarrier_init(&keys.values_empty, kComputingWarps);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      mbarrier_init(&state.queries_full[i], 1);
      mbarrier_init(&state.queries_empty[i], kComputingWarps);
      mbarrier_init(&state.ds_full[i], kComputingWarps);
      mbarrier_init(&state.ds_empty[i], kReadingWarps);
    }
    if constexpr (Shape::kHasBias) {
      for (Barrier& known : state.tile_known) mbarrier_init(&known, 1);
      for (int i = 0; i < Shape::kBiasStages; ++i) {
        mbarrier_init(&state.bias_full[i], 1);
        mbarrier_init(&state.bias_empty[i], kReadingWarps);
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
}

/// Kernel: a persistent block of threads per multiprocessor, with the roles above.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    sm90_backward_kernel(__grid_constant__ Sm90BackwardMaps const maps,
                         __grid_constant__ Sm90BackwardParams const params) {
  init_backward_barriers<Shape>();
  if (threadIdx.x == 0) {
    for (TensorMap const* map : {&maps.query, &maps.grad_out, &maps.value, &maps.key}) prefetch_tensor_map(map);
  }
  wait_on_dependent_grids();
  prepare_backward_time_table<Shape>(params);
  if (threadIdx.x < 128) {
    // All threads begin with an equal share. This warpgroup gives registers back, so that the consumers can take
    // them: they wait until enough are free.
    warpgroup_reg_dealloc<Shape::kProducerRegisters>();
    auto const warp = static_cast<int>(threadIdx.x / kWarpThreads);
    if (warp == 0) Sm90BackwardProducer<Shape>(maps, params).run();
    if constexpr (!Shape::kIsWide && !Shape::kTakesSequences) {
      if (warp == 1 || warp == 2) add_acc_dq<Shape>(params, warp - 1);
    }
    if constexpr (Shape::kHasBias) {
      if (warp == 3) Sm90BackwardBiasProducer<Shape>(params).run();
    }
  } else if (threadIdx.x < 128 * (Shape::kConsumers + 1)) {
    warpgroup_reg_alloc<Shape::kConsumerRegisters>();
    using Consumer =
        std::conditional_t<Shape::kIsWide, Sm90WideBackwardConsumer<T, Shape>, Sm90BackwardConsumer<T, Shape>>;
    Consumer(params, this_warpgroup() - 1).run();
  } else {
    if constexpr (Shape::kHasBias) {
      warpgroup_reg_dealloc<Shape::kGradientRegisters>();
      Sm90BiasGradients<T, Shape>(params).run();
    }
  }
}

/// Kernel: rounds float32 dQ from the workspace to T. A block of 128 threads for each block of queries and head.
/// Threads read their elements in the fragment order in which the consumers wrote them.
template <class T, class Shape>
__global__ void __launch_bounds__(128) convert_acc_dq_kernel(Sm90BackwardParams const params) {
  std::int64_t const tile = blockIdx.x;
  std::int64_t const* const offsets = params.sequences.query_offsets;
  // Binary search for the last sequence whose first block of queries is not behind this one.
  std::int64_t low = 0, high = params.sequences.num_sequences;
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
  FragmentCoord const coord(first_query);
  float const scale = scale_of_weights(params, view.mask.num_keys);
  OutputRows output(params.grad_query, view.first_query_row, head, coord, view.mask.num_queries,
                    scale * params.half_alpha);
  auto const* part = reinterpret_cast<float4 const*>(params.acc_dq) +
                     (tile * params.num_heads + head) * (Shape::kBlockQueries * Shape::kDim / 4) + threadIdx.x;
#pragma unroll
  for (int half = 0; half < Shape::kDim / Shape::kDqColumns; ++half) {
    float acc_dq[Shape::kDqColumns / 2];
#pragma unroll
    for (int i = 0; i < Shape::kDqColumns / 8; ++i) {
      float4 const four = __ldg(part + 128 * i);
      acc_dq[4 * i] = four.x;
      acc_dq[4 * i + 1] = four.y;
      acc_dq[4 * i + 2] = four.z;
      acc_dq[4 * i + 3] = four.w;
    }
    store_rows<T>(acc_dq, output);
    part += Shape::kDqElements / 4;
    output.data += Shape::kDqColumns;
  }
}

}  // namespace headway::kernels
