// SPDX-License-Identifier: Apache-2.0

// Shared state of the backward kernel on sm_90a: barriers, descriptions of tiles and blocks, and bias data. Producers
// write it, consumers read it, and the barriers beside each member tell when.

#pragma once

#include "cuda/clear_rows.cuh"
#include "cuda/tensor_map.cuh"
#include "hstu/cuda/sm90/backward/plan.hpp"
#include "hstu/cuda/sm90/backward/shape.cuh"
#include "hstu/cuda/sm90/bias/position_bias.cuh"
#include "hstu/cuda/sm90/bias/time_bias.cuh"
#include "hstu/cuda/sm90/score_block.cuh"
#include "hstu/cuda/tile/sequence_tile.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// TMA descriptors; dimensions (columns of a panel, tokens, panels, heads). A panel is 64 columns, or all 32
/// for dim 32 (SwizzledTile).
struct Sm90BackwardMaps {
  TensorMap key, value, query, grad_out;
};

/// Description of a tile of keys, from the producer to all other roles.
struct KeyTileInfo {
  SequenceView sequence;
  std::int32_t head = 0, first_key = 0;
  std::int64_t base_time = 0;  ///< Time from which the tile's times count (SplitTime).
  bool is_seen = false;        ///< Does some query see it?
  bool is_end = false;         ///< There are no more tiles.
};

/// Description of a block of queries, from the producer to the consumers.
struct QueryBlockInfo {
  std::int32_t tile = 0;  ///< Number of the block in the workspace (first_query_tile()).
  std::int32_t first_query = 0;
  std::int32_t turn = 0;          ///< Number of additions to its dQ that come before this tile's.
  std::uint32_t bias_parity = 0;  ///< See bias_stage_of().
  /// `is_whole`: every pair is visible, so no mask is needed. `is_last`: of its tile.
  bool is_whole = false, is_last = false;
  bool has_before = false, has_behind = false;  ///< See SequenceDqCoord.
  std::uint32_t seen_parts = 0;                 ///< Bit mask of consumers: does the block see some of its keys?
};

/// Bias data of a block of queries, for scores and for gradients of bias weights.
template <class Shape>
struct BiasBlock {
  using TimeBias = BlockTimeBias<Shape::kBlockKeys, Shape::kBlockQueries, 16>;

  BlockTimes<Shape::kBlockQueries, 8> times;
  TimeBias time_bias;
  PositionBand<Shape::kBlockKeys, Shape::kBlockQueries> positions;
  std::int32_t first_query = 0;
  bool is_last = false;
};

/// Gradients of time weights (the bias of each bucket of time differences) that a warp has added up, in shared memory,
/// for all its lanes.
struct WarpTimeSums {
  static constexpr std::int32_t kBuckets = 128;

  float sums[kBuckets];
  float factor;                           ///< Multiplies the dS sums of the present tile of keys.
  std::uint32_t are_above[kWarpThreads];  ///< By lane; see Sm90TimeGradients::are_above().

  /// Clears the sums.
  __device__ __forceinline__ void begin() {
    for (std::int32_t i = lane(); i < kBuckets; i += kWarpThreads) sums[i] = 0;
    __syncwarp();
  }
  __device__ __forceinline__ void begin_tile(float factor_of_gradients) {
    if (is_first_lane()) factor = factor_of_gradients;
    __syncwarp();
  }

  /// Adds dS sums of 8 neighbouring buckets from `first` on: lanes 0 to 3 hold two of them each. All lanes call it.
  /// Buckets beyond kBuckets go to global memory.
  /// @param last last bucket of the table. Sums beyond it may be NaN if one gradient is; they are ignored.
  __device__ __forceinline__ void add(std::int32_t first, std::int32_t last, float const (&of_two)[2],
                                      float* grad_weights) {
    __syncwarp();
    if (lane() >= 4) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::int32_t const bucket = first + 2 * lane() + i;
      if (of_two[i] == 0 || bucket > last) continue;
      if (bucket < kBuckets) {
        sums[bucket] += of_two[i] * factor;
      } else {
        atomicAdd(grad_weights + bucket, of_two[i] * factor);
      }
    }
  }

  /// Adds all sums to the gradients in global memory.
  __device__ __forceinline__ void end(float* grad_weights) const {
    __syncwarp();
    for (std::int32_t i = lane(); i < kBuckets; i += kWarpThreads) {
      if (sums[i] != 0) atomicAdd(grad_weights + i, sums[i]);
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
  }
};

/// Destination of a consumer's dQ in the workspace.
struct AccDqCoord {
  /// Index of the part of dQ (block of queries, head and, with kSplitsColumns, half of the columns); negative: none.
  std::int32_t part = -1;
  std::int32_t turn = 0;  ///< Value of the part's turn counter that allows this addition.

  [[nodiscard]] __device__ __forceinline__ bool is_none() const { return part < 0; }
};

/// Identifies dQ of a block of queries, if a block of threads takes whole sequences.
struct SequenceDqCoord {
  std::int32_t first_query = -1;  ///< First query of the block; negative: no block.
  /// Do some of its queries see earlier (later) tiles of keys of the sequence?
  bool has_before = false, has_behind = false;

  [[nodiscard]] __device__ __forceinline__ bool is_none() const { return first_query < 0; }
};

/// mbarriers of one stage of K and V.
struct KeyBarriers {
  Barrier keys_full, keys_empty, values_full, values_empty;
};

/// The part of shared memory after the tiles: mbarriers and descriptions. The time table follows it.
template <class Shape>
struct Sm90BackwardState : KeyBarriers {
  using KeysPosition = RingPosition<Shape::kKeyStages>;

  KeyBarriers second_keys;  ///< Barriers of the second stage of K and V, if there is one.
  Barrier queries_full[Shape::kStages], queries_empty[Shape::kStages];
  Barrier ds_full[Shape::kStages], ds_empty[Shape::kStages];  ///< Barriers of dS, by stage of queries.
  Barrier tile_known[2];  ///< By phase parity of keys; for the warp that prepares the bias.
  Barrier bias_full[Shape::kBiasStages], bias_empty[Shape::kBiasStages];
  /// By stage and phase parity of their keys: the next description is written while the present one is in use.
  KeyTileInfo tiles[2 * Shape::kKeyStages];
  /// By phase parity of keys.
  std::conditional_t<Shape::kHasBias, BlockTimes<Shape::kBlockKeys, 16>, NoBias> key_times[2];
  QueryBlockInfo blocks[Shape::kStages];
  QueryVisibility visibility[Shape::kStages][Shape::kBlockQueries];
  AccDqCoord dq_coords[Shape::kConsumers];
  std::conditional_t<Shape::kHasBias, BiasBlock<Shape>, NoBias> bias_blocks[Shape::kBiasStages];
  std::conditional_t<Shape::kHasBias, WarpTimeSums, NoBias>
      time_sums[Shape::kThreads / kWarpThreads - 4];  ///< For all warps but the first four, the producers.
  static_assert(!Shape::kHasBias || Shape::kKeyStages == 1);

  /// Stage of the bias that belongs to a position in the ring of queries.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t bias_stage_of(
      RingPosition<Shape::kStages> const& queries) {
    static_assert(!Shape::kHasBias || Shape::kBiasStages == 2 * Shape::kStages);
    return queries.parity * Shape::kStages + queries.index;
  }

  [[nodiscard]] __device__ __forceinline__ KeyTileInfo& tile_of(KeysPosition const& keys) {
    return tiles[keys.parity * Shape::kKeyStages + keys.index];
  }
  [[nodiscard]] __device__ __forceinline__ KeyBarriers& barriers_of(KeysPosition const& keys) {
    if (Shape::kKeyStages == 2 && keys.index == 1) return second_keys;
    return *this;
  }
};

template <class Shape>
[[nodiscard]] constexpr std::uint32_t sm90_backward_shared_bytes(HstuBias const& bias) {
  constexpr std::uint32_t kState = Shape::kStateAt + sizeof(Sm90BackwardState<Shape>);
  static_assert(kState + (Shape::kHasBias ? TimeTable::size_bytes(TimeTable::kMaxBounds) : 0) <= kMaxSharedBytes);
  return kState + (bias.has_time() ? TimeTable::size_bytes(bias.num_time_bounds) : 0);
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ Sm90BackwardState<Shape>& backward_state() {
  return *reinterpret_cast<Sm90BackwardState<Shape>*>(shared_memory() + Shape::kStateAt);
}

/// Sums of this warp, which must not be among the first four.
template <class Shape>
[[nodiscard]] __device__ __forceinline__ WarpTimeSums& own_time_sums() {
  return backward_state<Shape>().time_sums[threadIdx.x / kWarpThreads - 4];
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ TimeTable backward_time_table(HstuBias const& bias) {
  return {shared_memory() + Shape::kStateAt + sizeof(Sm90BackwardState<Shape>), bias};
}

/// Named barriers. A barrier of consumer 0 is followed by that of consumer 1.
enum BackwardBarrier : int {
  kDqFull = 1,       ///< dQ of a consumer is in shared memory.
  kDqEmpty = 3,      ///< The buffer of dQ is free again.
  kTableFilled = 5,  ///< The time table is filled.
  kDqTurn = 6,       ///< dim 256: the turn of a part of dQ has come, or is over.
  kRowsCleared = 8,  ///< Rows behind a sequence are cleared.
};

/// Zeroes the rows of K and V behind the end of their sequence (clear_rows.cuh). A consumer warpgroup calls it.
template <class Shape>
__device__ __forceinline__ void clear_keys_behind_sequence(KeyTileInfo const& tile, std::uint32_t stage,
                                                           int warpgroup) {
  std::int32_t const num_keys = tile.sequence.mask.num_keys - tile.first_key;
  if (num_keys >= Shape::kBlockKeys) return;
  std::byte* const keys = shared_memory() + stage * Shape::kKeyStageBytes;
  clear_rows_behind<typename Shape::KeyTile>(keys, num_keys);
  clear_rows_behind<typename Shape::KeyTile>(keys + Shape::kValuesAt, num_keys);
  fence_for_wgmma(kRowsCleared + warpgroup);
}

/// Zeroes the rows of Q and dO behind the end of their sequence, in its last block.
template <class Shape>
__device__ __forceinline__ void clear_queries_behind_sequence(KeyTileInfo const& tile, std::int32_t first_query,
                                                              std::uint32_t stage, int warpgroup) {
  std::int32_t const num_queries = tile.sequence.mask.num_queries - first_query;
  if (num_queries >= Shape::kBlockQueries) return;
  std::byte* const queries = shared_memory() + Shape::kQueriesAt + stage * Shape::QueryTile::kBytes;
  clear_rows_behind<typename Shape::QueryTile>(queries, num_queries);
  clear_rows_behind<typename Shape::QueryTile>(queries + (Shape::kGradOutAt - Shape::kQueriesAt), num_queries);
  fence_for_wgmma(kRowsCleared + warpgroup);
}

/// Fills the time table. All threads call it; those of the first three warps return at once. There is one place in the
/// code for it, since compute-sanitizer reports warps that reach a barrier from several places as diverged.
template <class Shape>
__device__ __forceinline__ void prepare_backward_time_table(Sm90BackwardParams const& params) {
  if constexpr (Shape::kHasBias) {
    HstuBias const& bias = params.bias;
    constexpr int kFilling = Shape::kThreads - 3 * kWarpThreads;
    int const thread = static_cast<int>(threadIdx.x) - (Shape::kThreads - kFilling);
    if (!bias.has_time() || thread < 0) return;
    auto const meet = [] { named_barrier_sync(kTableFilled, kFilling); };
    backward_time_table<Shape>(bias).fill(bias, params.half_alpha, thread, kFilling, meet);
    meet();
  }
}

}  // namespace headway::kernels
