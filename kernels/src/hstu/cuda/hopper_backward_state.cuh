#pragma once

#include "cuda/clear_rows.cuh"
#include "cuda/tensor_map.cuh"
#include "hstu/cuda/biased_scores.cuh"
#include "hstu/cuda/hopper_backward_params.hpp"
#include "hstu/cuda/hopper_backward_shape.cuh"
#include "hstu/cuda/score_block.cuh"
#include "hstu/cuda/sequence_tile.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Maps of tiles: (columns of a panel, tokens, panels, heads).
struct HopperBackwardMaps {
  TensorMap key, value, query, grad_out;
};

/// What the producer says of a tile of keys.
struct KeyTileInfo {
  SequenceView sequence;
  std::int32_t head = 0, first_key = 0;
  std::int64_t base_time = 0;
  bool is_seen = false;  ///< By some query.
  bool is_end = false;
};

struct QueryBlockInfo {
  std::int32_t tile = 0;  ///< Its number among those of sums.
  std::int32_t first_query = 0;
  std::int32_t turn = 0;          ///< Tiles of keys that add to its sums before.
  std::uint32_t bias_parity = 0;  ///< See bias_stage_of().
  bool is_whole = false, is_last = false;
  bool has_before = false, has_behind = false;  ///< See OwnSumsPlace.
  std::uint32_t seen_parts = 0;                 ///< Bits of the warpgroups of whose keys something is seen.
};

/// What a bias and its gradients need of a block of queries.
template <class Shape>
struct BiasBlock {
  using TimeBias = BlockTimeBias<Shape::kBlockKeys, Shape::kBlockQueries, 16>;

  BlockTimes<Shape::kBlockQueries, 8> times;
  TimeBias time_bias;
  PositionBand<Shape::kBlockKeys, Shape::kBlockQueries> positions;
  std::int32_t first_query = 0;
  bool is_last = false;
};

/// What a warp keeps of the gradients of time weights, for all lanes.
struct WarpTimeSums {
  static constexpr std::int32_t kBuckets = 128;

  float sums[kBuckets];
  float factor;                           ///< Of gradients of the present tile.
  std::uint32_t are_above[kWarpThreads];  ///< See HopperTimeGradients.

  __device__ __forceinline__ void begin() {
    for (std::int32_t i = lane(); i < kBuckets; i += kWarpThreads) sums[i] = 0;
    __syncwarp();
  }
  __device__ __forceinline__ void begin_tile(float factor_of_gradients) {
    if (is_first_lane()) factor = factor_of_gradients;
    __syncwarp();
  }

  /// Four lanes have sums of gradients of two neighbouring buckets each, from `first` on. By all lanes.
  /// @param last bucket that there is. Sums of others may be not numbers, if one gradient is none.
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

/// Where sums of a block of queries are to be added.
struct QuerySumsPlace {
  std::int32_t part = -1;  ///< Number of the part of sums; less than 0: nowhere.
  std::int32_t turn = 0;

  [[nodiscard]] __device__ __forceinline__ bool is_none() const { return part < 0; }
};

/// Which sums those of a block of queries are, where a block of threads takes sequences.
struct OwnSumsPlace {
  std::int32_t first_query = -1;                ///< Less than 0: of none.
  bool has_before = false, has_behind = false;  ///< Tiles of keys that some of its queries see, in the sequence.

  [[nodiscard]] __device__ __forceinline__ bool is_none() const { return first_query < 0; }
};

/// Of a buffer for keys and one for values.
struct KeyBarriers {
  Barrier keys_full, keys_empty, values_full, values_empty;
};

/// Behind the tiles in shared memory; behind it the table of times.
template <class Shape>
struct HopperBackwardState : KeyBarriers {
  using KeysPosition = RingPosition<Shape::kKeyStages>;

  KeyBarriers second_keys;  ///< Where there are two buffers of each.
  Barrier queries_full[Shape::kStages], queries_empty[Shape::kStages];
  Barrier grads_full[Shape::kStages], grads_empty[Shape::kStages];  ///< Of scores, by block of queries.
  Barrier tile_known[2];  ///< By the parity of keys, for the warp that prepares biases.
  Barrier bias_full[Shape::kBiasStages], bias_empty[Shape::kBiasStages];
  /// By the place and parity of their keys: that of the next is written while one is still in use.
  KeyTileInfo tiles[2 * Shape::kKeyStages];
  std::conditional_t<Shape::kHasBias, BlockTimes<Shape::kBlockKeys, 16>, NoBias> key_times[2];  ///< By parity alone.
  QueryBlockInfo blocks[Shape::kStages];
  QueryVisibility visibility[Shape::kStages][Shape::kBlockQueries];
  QuerySumsPlace places[Shape::kConsumers];
  std::conditional_t<Shape::kHasBias, BiasBlock<Shape>, NoBias> bias_blocks[Shape::kBiasStages];
  std::conditional_t<Shape::kHasBias, WarpTimeSums, NoBias>
      time_sums[Shape::kThreads / kWarpThreads - 4];  ///< Of all warps but the first four.
  static_assert(!Shape::kHasBias || Shape::kKeyStages == 1);

  /// The bias's place of a block in the place of queries.
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
[[nodiscard]] constexpr std::uint32_t hopper_backward_shared_bytes(HstuBias const& bias) {
  constexpr std::uint32_t kState = Shape::kStateAt + sizeof(HopperBackwardState<Shape>);
  static_assert(kState + (Shape::kHasBias ? TimeTable::size_bytes(TimeTable::kMostBounds) : 0) <= kMostSharedBytes);
  return kState + (bias.has_time() ? TimeTable::size_bytes(bias.num_time_bounds) : 0);
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ HopperBackwardState<Shape>& backward_state() {
  return *reinterpret_cast<HopperBackwardState<Shape>*>(shared_memory() + Shape::kStateAt);
}

/// Of any warp but the first four.
template <class Shape>
[[nodiscard]] __device__ __forceinline__ WarpTimeSums& own_time_sums() {
  return backward_state<Shape>().time_sums[threadIdx.x / kWarpThreads - 4];
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ TimeTable backward_time_table(HstuBias const& bias) {
  return {shared_memory() + Shape::kStateAt + sizeof(HopperBackwardState<Shape>), bias};
}

/// Named barriers; those of a warpgroup that computes are followed by those of the other.
enum BackwardBarrier : int {
  kSumsFull = 1,
  kSumsEmpty = 3,
  kTableFilled = 5,
  kTurnTaken = 6,
  kRowsCleared = 8,
};

/// Clears what the tiles of keys and values hold behind the end of their sequence. By a warpgroup that computes.
template <class Shape>
__device__ __forceinline__ void clear_keys_behind_sequence(KeyTileInfo const& tile, std::uint32_t stage,
                                                           int warpgroup) {
  std::int32_t const num_keys = tile.sequence.mask.num_keys - tile.first_key;
  if (num_keys >= Shape::kBlockKeys) return;
  std::byte* const keys = shared_memory() + stage * Shape::kKeyStageBytes;
  clear_rows_behind<typename Shape::KeyTile>(keys, num_keys);
  clear_rows_behind<typename Shape::KeyTile>(keys + Shape::kValuesAt, num_keys);
  show_writes_to_products(kRowsCleared + warpgroup);
}

/// The same for queries and the gradients of their output, of the last block of a sequence.
template <class Shape>
__device__ __forceinline__ void clear_queries_behind_sequence(KeyTileInfo const& tile, std::int32_t first_query,
                                                              std::uint32_t stage, int warpgroup) {
  std::int32_t const num_queries = tile.sequence.mask.num_queries - first_query;
  if (num_queries >= Shape::kBlockQueries) return;
  std::byte* const queries = shared_memory() + Shape::kQueriesAt + stage * Shape::QueryTile::kBytes;
  clear_rows_behind<typename Shape::QueryTile>(queries, num_queries);
  clear_rows_behind<typename Shape::QueryTile>(queries + (Shape::kGradsAt - Shape::kQueriesAt), num_queries);
  show_writes_to_products(kRowsCleared + warpgroup);
}

/// By all threads, of which those of the first three warps have nothing to do. From one place in the code: warps that
/// come to a barrier from several are diverged to compute-sanitizer.
template <class Shape>
__device__ __forceinline__ void prepare_backward_time_table(HopperBackwardParams const& params) {
  if constexpr (Shape::kHasBias) {
    HstuBias const& bias = params.bias;
    constexpr int kFilling = Shape::kThreads - 3 * kWarpThreads;
    int const thread = static_cast<int>(threadIdx.x) - (Shape::kThreads - kFilling);
    if (!bias.has_time() || thread < 0) return;
    auto const meet = [] { sync_named(kTableFilled, kFilling); };
    backward_time_table<Shape>(bias).fill(bias, params.half_alpha, thread, kFilling, meet);
    meet();
  }
}

}  // namespace headway::kernels
