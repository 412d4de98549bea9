#pragma once

#include "cuda/tensor_map.cuh"
#include "hstu/cuda/biased_scores.cuh"
#include "hstu/cuda/hopper_backward_params.hpp"
#include "hstu/cuda/hopper_backward_shape.cuh"
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

/// Which keys a query sees.
struct alignas(16) QueryVisibility {
  std::int32_t begin, length, token;

  [[nodiscard]] __device__ __forceinline__ bool sees(std::int32_t key) const {
    bool const is_in_range = static_cast<std::uint32_t>(key - begin) < static_cast<std::uint32_t>(length);
    return is_in_range | (key == token);  // Without branches.
  }
};

struct QueryBlockInfo {
  std::int32_t tile = 0;  ///< Its number among those of sums.
  std::int32_t first_query = 0;
  std::int32_t turn = 0;  ///< Tiles of keys that add to its sums before.
  bool is_whole = false, is_last = false;
};

/// Where sums of a block of queries are to be added.
struct QuerySumsPlace {
  std::int32_t part = 0;  ///< Number of the part of sums; less than 0: nowhere.
  std::int32_t turn = 0;
};

/// Behind the tiles in shared memory; behind it the table of times, and sums for the gradients of its weights.
template <class Shape>
struct HopperBackwardState {
  Barrier keys_full, keys_empty, values_full, values_empty;
  Barrier queries_full[Shape::kStages], queries_empty[Shape::kStages];
  Barrier grads_full[Shape::kStages], grads_empty[Shape::kStages];  ///< Of scores, by block of queries.
  Barrier times_empty[Shape::kStages];  ///< The times of a block of queries, by those who add up gradients of biases.
  KeyTileInfo tiles[2];  ///< By the parity of their keys: that of the next is written while one is still in use.
  QueryBlockInfo blocks[Shape::kStages];
  QueryVisibility visibility[Shape::kStages][Shape::kBlockQueries];
  QuerySumsPlace places[Shape::kConsumers];
  std::conditional_t<Shape::kHasBias, TimeColumns<Shape::kBlockQueries>, NoBias> query_times[Shape::kStages];
  std::conditional_t<Shape::kHasBias, PositionBand<Shape::kBlockKeys, Shape::kBlockQueries>, NoBias>
      positions[Shape::kStages];
  TimeRange row_times[4 * Shape::kConsumers];  ///< By warp.
  std::conditional_t<Shape::kHasBias, SplitTime, NoBias> key_times[Shape::kBlockKeys];
};

/// How many sums there are for the gradient of each time weight. Lanes have sums of their own as far as there is room:
/// adding to the same one they would wait for each other.
[[nodiscard]] constexpr std::int32_t copies_of_time_sums(std::int64_t num_time_bounds) {
  constexpr std::int64_t kMostSums = 4096;
  std::int32_t copies = kWarpThreads;
  while (copies * (num_time_bounds + 1) > kMostSums) copies /= 2;
  return copies;
}

/// The table of times and those sums.
[[nodiscard]] constexpr std::uint32_t time_gradient_bytes(std::int64_t num_time_bounds) {
  std::int64_t const num_sums = (num_time_bounds + 1) * copies_of_time_sums(num_time_bounds);
  return TimeTable::size_bytes(num_time_bounds) + static_cast<std::uint32_t>(num_sums * sizeof(float));
}

template <class Shape>
[[nodiscard]] constexpr std::uint32_t hopper_backward_shared_bytes(HstuBias const& bias) {
  constexpr std::uint32_t kMostBytes = 227 * 1024, kState = Shape::kStateAt + sizeof(HopperBackwardState<Shape>);
  static_assert(kState + (Shape::kHasBias ? time_gradient_bytes(TimeTable::kMostBounds) : 0) <= kMostBytes);
  return kState + (bias.has_time() ? time_gradient_bytes(bias.num_time_bounds) : 0);
}

template <class Shape>
[[nodiscard]] __device__ __forceinline__ HopperBackwardState<Shape>& backward_state() {
  return *reinterpret_cast<HopperBackwardState<Shape>*>(shared_memory() + Shape::kStateAt);
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
  kTimeSums = 6,
  kTurnTaken = 7,
};

/// By all warpgroups but the first.
template <class Shape>
__device__ __forceinline__ void prepare_backward_time_table(HopperBackwardParams const& params) {
  if constexpr (Shape::kHasBias) {
    HstuBias const& bias = params.bias;
    if (!bias.has_time()) return;
    constexpr int kFilling = Shape::kThreads - 128;
    int const thread = static_cast<int>(threadIdx.x) - 128;
    TimeTable table = backward_time_table<Shape>(bias);
    table.copy_bounds(bias, params.half_alpha, thread, kFilling);
    sync_named(kTableFilled, kFilling);
    table.fill_cells(thread, kFilling);
    sync_named(kTableFilled, kFilling);
  }
}

}  // namespace headway::kernels
