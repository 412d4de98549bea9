// SPDX-License-Identifier: Apache-2.0

// Shared state of the forward kernel on sm_90a: barriers, descriptions of tiles and blocks, and bias data. Producers
// write it, consumers read it, and the barriers beside each member tell when.

#pragma once

#include "cuda/tensor_map.cuh"
#include "hstu/cuda/sm90/bias/position_bias.cuh"
#include "hstu/cuda/sm90/bias/rounded_time_weights.cuh"
#include "hstu/cuda/sm90/bias/time_bias.cuh"
#include "hstu/cuda/sm90/bias/time_values.cuh"
#include "hstu/cuda/sm90/forward/plan.hpp"
#include "hstu/cuda/sm90/forward/shape.cuh"
#include "hstu/cuda/tile/sequence_tile.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// TMA descriptors of Q, K and V; dimensions (columns of a panel, tokens, panels, heads). A panel is 64 columns, or all
/// 32 for dim 32 (SwizzledTile).
struct Sm90ForwardMaps {
  TensorMap query, key, value;
};

/// Description of a tile of queries, from the producer to all other roles.
struct QueryTileInfo {
  SequenceView sequence;
  std::int32_t head = 0, first_query = 0;
  std::int64_t base_time = 0;  ///< Time from which the tile's times count (SplitTime).
  bool is_end = false;         ///< There are no more tiles.
};

/// Description of a block of keys, from the key producer to the consumers.
struct KeyBlockInfo {
  std::int32_t first_key = 0;
  /// `is_whole`: every pair is visible, so no mask is needed. `is_last`: of its tile.
  bool is_whole = false, is_last = false;
};

/// Bias data of a block of keys.
template <class Shape>
struct ForwardBiasBlock {
  BlockTimes<Shape::kBlockKeys, 8> times;
  PositionBand<Shape::kBlockQueries, Shape::kBlockKeys> positions;
  std::int32_t first_key = 0;
  bool is_last = false;  ///< Last block of its tile?
};

template <class Shape>
using Sm90ForwardTimeValues = TimeValues<Shape::kBlockKeys, Shape::kTimeStages>;

/// The part of shared memory after the tiles: mbarriers and descriptions. The time table and its rounded weights
/// follow it.
template <class Shape>
struct Sm90ForwardState {
  /// Tile descriptions. They are known before the queries have arrived; every warp but the query producer releases
  /// them.
  Barrier tile_known[Shape::kTileStages], tile_empty[Shape::kTileStages];
  Barrier query_full[Shape::kQueryStages], query_empty[Shape::kQueryStages];
  Barrier key_full[Shape::kKeyStages], key_empty[Shape::kKeyStages];
  Barrier value_full[Shape::kKeyStages], value_empty[Shape::kKeyStages];
  Barrier bias_full[Shape::kBiasStages], bias_empty[Shape::kBiasStages];
  /// Barriers of TimeValues, by stage and consumer.
  Barrier times_full[Shape::kTimeStages][Shape::kConsumers], times_empty[Shape::kTimeStages][Shape::kConsumers];
  QueryTileInfo tiles[Shape::kTileStages];
  KeyBlockInfo blocks[Shape::kKeyStages];
  std::int32_t num_values[Shape::kKeyStages];  ///< Rows of the sequence from the first row of the V tile on.
  std::conditional_t<Shape::kHasBias, BlockTimes<Shape::kBlockQueries, 16>, NoBias> query_times[Shape::kTileStages];
  std::conditional_t<Shape::kHasBias, ForwardBiasBlock<Shape>, NoBias> bias_blocks[Shape::kBiasStages];
  std::conditional_t<Shape::kHasBias, Sm90ForwardTimeValues<Shape>, NoBias> time_values[Shape::kConsumers];
};

/// Bytes of the time table and its rounded weights.
[[nodiscard]] constexpr std::uint32_t forward_time_bytes(std::int64_t num_bounds) {
  return TimeTable::size_bytes(num_bounds) + RoundedTimeWeights::size_bytes(num_bounds);
}
static_assert(forward_time_bytes(RoundedTimeWeights::kMaxBounds) <= forward_time_bytes(TimeTable::kMaxBounds));

/// Dynamic shared memory of the forward kernel, in bytes.
template <class Shape>
[[nodiscard]] constexpr std::uint32_t sm90_forward_shared_bytes(HstuBias const& bias) {
  constexpr std::uint32_t kState = Shape::kStateAt + sizeof(Sm90ForwardState<Shape>);
  static_assert(kState + (Shape::kHasBias ? forward_time_bytes(TimeTable::kMaxBounds) : 0) <= kMaxSharedBytes);
  return kState + (bias.has_time() ? forward_time_bytes(bias.num_time_bounds) : 0);
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ Sm90ForwardState<Shape>& forward_state() {
  return *reinterpret_cast<Sm90ForwardState<Shape>*>(shared_memory() + Shape::kStateAt);
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ std::byte* forward_time_memory() {
  return shared_memory() + Shape::kStateAt + sizeof(Sm90ForwardState<Shape>);
}

}  // namespace headway::kernels
