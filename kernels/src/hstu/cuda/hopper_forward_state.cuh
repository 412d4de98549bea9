#pragma once

#include "cuda/tensor_map.cuh"
#include "hstu/cuda/biased_scores.cuh"
#include "hstu/cuda/hopper_forward_params.hpp"
#include "hstu/cuda/hopper_forward_shape.cuh"
#include "hstu/cuda/sequence_tile.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Maps of queries, keys and values: (columns of a panel, tokens, panels, heads).
struct HopperForwardMaps {
  TensorMap query, key, value;
};

/// What the producer says of a tile of queries.
struct QueryTileInfo {
  SequenceView sequence;
  std::int32_t head = 0, first_query = 0;
  std::int64_t base_time = 0;
  bool is_end = false;
};

struct KeyBlockInfo {
  std::int32_t first_key = 0;
  bool is_whole = false, is_last = false;
};

/// What a bias needs of a block of keys.
template <class Shape>
struct ForwardBiasBlock {
  BlockTimes<Shape::kBlockKeys, 8> times;
  BlockTimeBias<Shape::kBlockQueries, Shape::kBlockKeys, Shape::kBiasChunk> time_bias;
  PositionBand<Shape::kBlockQueries, Shape::kBlockKeys> positions;
};

/// Behind the tiles in shared memory; behind it the table of times.
template <class Shape>
struct HopperForwardState {
  /// What is said of a tile is known before its queries are there; all warps but the one that brings them empty it.
  Barrier tile_known[Shape::kQueryStages], query_full[Shape::kQueryStages], query_empty[Shape::kQueryStages];
  Barrier key_full[Shape::kKeyStages], key_empty[Shape::kKeyStages];
  Barrier value_full[Shape::kKeyStages], value_empty[Shape::kKeyStages];
  Barrier bias_full[Shape::kBiasStages], bias_empty[Shape::kBiasStages];
  QueryTileInfo tiles[Shape::kQueryStages];
  KeyBlockInfo blocks[Shape::kKeyStages];
  std::conditional_t<Shape::kHasBias, BlockTimes<Shape::kBlockQueries, 16>, NoBias> query_times[Shape::kQueryStages];
  std::conditional_t<Shape::kHasBias, ForwardBiasBlock<Shape>, NoBias> bias_blocks[Shape::kBiasStages];
};

template <class Shape>
[[nodiscard]] constexpr std::uint32_t hopper_forward_shared_bytes(HstuBias const& bias) {
  std::uint32_t const state = Shape::kStateAt + sizeof(HopperForwardState<Shape>);
  return bias.has_time() ? state + TimeTable::size_bytes(bias.num_time_bounds) : state;
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ HopperForwardState<Shape>& forward_state() {
  return *reinterpret_cast<HopperForwardState<Shape>*>(shared_memory() + Shape::kStateAt);
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ TimeTable forward_time_table(HstuBias const& bias) {
  return {shared_memory() + Shape::kStateAt + sizeof(HopperForwardState<Shape>), bias};
}

/// By those that compute and the two warps before them.
template <class Shape>
__device__ __forceinline__ void prepare_forward_time_table(HopperForwardParams const& params) {
  if constexpr (Shape::kHasBias) {
    if (!params.bias.has_time()) return;
    constexpr int kFilling = 128 * Shape::kConsumers + 2 * kWarpThreads, kTableBarrier = 3;
    int const thread = static_cast<int>(threadIdx.x) - (Shape::kThreads - kFilling);
    auto const meet = [] { sync_named(kTableBarrier, kFilling); };
    forward_time_table<Shape>(params.bias).fill(params.bias, params.half_alpha, thread, kFilling, meet);
    meet();
  }
}

}  // namespace headway::kernels
