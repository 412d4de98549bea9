#pragma once

// Forward pass on sm_90a. A warp brings tiles of queries, keys and values to shared memory (TMA); two warpgroups
// multiply them (wgmma), 64 queries each: the products of the next keys run before those with the present values, and
// weights are computed meanwhile. Partial sums over keys just add up, as there is no softmax.

#include "cuda/tensor_map.cuh"
#include "hstu/cuda/hopper_forward_params.hpp"
#include "hstu/cuda/hopper_forward_shape.cuh"
#include "hstu/cuda/score_block.cuh"
#include "hstu/cuda/sequence_tile.cuh"
#include "hstu/cuda/store_rows.cuh"
#include "hstu/cuda/time_columns.cuh"
#include "hstu/cuda/visible_blocks.cuh"

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

/// Behind the tiles in shared memory; behind it the table of times.
template <class Shape>
struct HopperForwardState {
  Barrier query_full[Shape::kQueryStages], query_empty[Shape::kQueryStages];
  Barrier key_full[Shape::kKeyStages], key_empty[Shape::kKeyStages];
  Barrier value_full[Shape::kKeyStages], value_empty[Shape::kKeyStages];
  QueryTileInfo tiles[Shape::kQueryStages];
  KeyBlockInfo blocks[Shape::kKeyStages];
  std::conditional_t<Shape::kHasBias, TimeColumns<Shape::kBlockKeys>, NoTimes> key_times[Shape::kKeyStages];
  TimeRange row_times[4 * Shape::kConsumers];  ///< By warp.
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

/// The warp that brings tiles.
template <class Shape>
class HopperForwardProducer {
 public:
  __device__ __forceinline__ HopperForwardProducer(HopperForwardMaps const& maps, HopperForwardParams const& params)
      : maps_(maps), params_(params), state_(forward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    TileCounter const counter{params_.tiles_taken};
    TileSchedule schedule(params_.sequences.query_offsets, params_.sequences.num_sequences, params_.num_heads,
                          Shape::kBlockQueries, params_.section_sequences, BlockOrder::kLastFirst);
    SequenceTile tile;
    std::int32_t next = 0;
    for (auto number = static_cast<std::int32_t>(blockIdx.x); schedule.find(number, tile); number = next) {
      next = counter.next();
      bring_tile(tile);
      if (next == INT32_MAX) break;
    }
    wait(&state_.query_empty[query_.index], query_.parity ^ 1);
    if (is_first_lane()) {
      state_.tiles[query_.index].is_end = true;
      arrive(&state_.query_full[query_.index]);
    }
  }

 private:
  using Blocks = VisibleBlocks<KeysSeenBy, Shape::kBlockKeys>;

  [[nodiscard]] static __device__ __forceinline__ bool is_first_lane() { return threadIdx.x % kWarpThreads == 0; }

  __device__ __forceinline__ void bring_tile(SequenceTile const& tile) {
    std::uint32_t const place = query_.index;
    bring_queries(tile);
    // From shared memory, as this warp has few registers.
    QueryTileInfo const& info = state_.tiles[place];
    HstuSequenceMask const& mask = info.sequence.mask;
    Blocks blocks({mask, info.first_query, min(info.first_query + Shape::kBlockQueries, mask.num_queries)});
    // Keys are needed a step before values.
    std::int32_t present = bring_keys(info, blocks);
    while (!blocks.is_done()) {
      std::int32_t const next = bring_keys(info, blocks);
      bring_values(info, present);
      present = next;
    }
    bring_values(info, present);
  }

  __device__ __forceinline__ void bring_queries(SequenceTile const& tile) {
    std::uint32_t const i = query_.index;
    wait(&state_.query_empty[i], query_.parity ^ 1);
    if (is_first_lane()) {
      SequenceView const sequence(params_.sequences, params_.mask, tile.sequence);
      std::int32_t const first_query = tile.block * Shape::kBlockQueries;
      std::int64_t const first_row = sequence.first_query_row + first_query;
      std::int64_t base_time = 0;
      if constexpr (Shape::kHasBias) {
        if (params_.bias.has_time()) base_time = __ldg(params_.bias.query_times + first_row);
      }
      state_.tiles[i] = {sequence, tile.head, first_query, base_time, false};
      arrive_expecting(&state_.query_full[i], Shape::QueryTile::kBytes);
      load_tile(shared_memory() + i * Shape::QueryTile::kBytes, &maps_.query, &state_.query_full[i], 0,
                static_cast<std::int32_t>(first_row), 0, tile.head);
    }
    __syncwarp();
    query_.advance();
  }

  /// Those of the present block; goes on to the next. @returns the block
  __device__ __forceinline__ std::int32_t bring_keys(QueryTileInfo const& tile, Blocks& blocks) {
    std::uint32_t const i = key_.index;
    std::int32_t const block = blocks.block(), first_key = block * Shape::kBlockKeys;
    bool const is_whole = blocks.is_whole();
    blocks.advance();
    wait(&state_.key_empty[i], key_.parity ^ 1);
    if constexpr (Shape::kHasBias) {
      if (params_.bias.has_time()) {
        state_.key_times[i].fill(params_.bias.key_times + tile.sequence.first_key_row + first_key,
                                 tile.sequence.mask.num_keys - first_key, tile.base_time);
      }
    }
    if (is_first_lane()) {
      state_.blocks[i] = {first_key, is_whole, blocks.is_done()};
      arrive_expecting(&state_.key_full[i], Shape::KeyTile::kBytes);
      load_tile(shared_memory() + Shape::kKeysAt + i * Shape::KeyTile::kBytes, &maps_.key, &state_.key_full[i], 0,
                static_cast<std::int32_t>(tile.sequence.first_key_row) + first_key, 0, tile.head);
    }
    key_.advance();
    return block;
  }

  __device__ __forceinline__ void bring_values(QueryTileInfo const& tile, std::int32_t block) {
    std::uint32_t const i = value_.index;
    wait(&state_.value_empty[i], value_.parity ^ 1);
    if (is_first_lane()) {
      arrive_expecting(&state_.value_full[i], Shape::KeyTile::kBytes);
      load_tile(shared_memory() + Shape::kValuesAt + i * Shape::KeyTile::kBytes, &maps_.value, &state_.value_full[i], 0,
                static_cast<std::int32_t>(tile.sequence.first_key_row) + block * Shape::kBlockKeys, 0, tile.head);
    }
    value_.advance();
  }

  HopperForwardMaps const& maps_;
  HopperForwardParams const& params_;
  HopperForwardState<Shape>& state_;
  RingPosition<Shape::kQueryStages> query_;
  RingPosition<Shape::kKeyStages> key_, value_;
};

/// A warpgroup that computes 64 rows of each tile.
template <class T, class Shape>
class HopperForwardConsumer {
 public:
  /// @param warpgroup of those that compute
  __device__ __forceinline__ HopperForwardConsumer(HopperForwardParams const& params, int warpgroup)
      : params_(params), state_(forward_state<Shape>()), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    prepare_time_table();
    // The first may begin.
    if (Shape::kTakesTurns && warpgroup_ == 1) arrive_named(kTurnBarrier, kTurnThreads);
    while (true) {
      wait(&state_.query_full[query_.index], query_.parity);
      QueryTileInfo const& tile = state_.tiles[query_.index];
      if (tile.is_end) return;
      compute_tile(tile);
    }
  }

 private:
  static constexpr int kTurnBarrier = 1;  ///< And the next, for the second warpgroup.
  static constexpr int kTableBarrier = 3;
  static constexpr int kTurnThreads = 256;
  static constexpr int kScores = Shape::kBlockKeys / 2;  ///< Of a thread.
  static constexpr int kSums = Shape::kDim / 2;
  static constexpr int kSteps = Shape::kBlockKeys / 16;
  static_assert(!Shape::kTakesTurns || Shape::kConsumers == 2);

  /// Of those that compute.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t warp() { return threadIdx.x / kWarpThreads - 4; }

  /// What a thread keeps of a tile.
  struct Rows {
    FragmentPlace place;
    RowsVisibility visibility;
    RowTimes times;
  };

  __device__ __forceinline__ void prepare_time_table() {
    if constexpr (Shape::kHasBias) {
      if (!params_.bias.has_time()) return;
      constexpr int kComputing = 128 * Shape::kConsumers;
      int const thread = static_cast<int>(threadIdx.x) - 128;
      TimeTable table = time_table();
      table.copy_bounds(params_.bias, thread, kComputing);
      sync_named(kTableBarrier, kComputing);
      table.fill_cells(thread, kComputing);
      sync_named(kTableBarrier, kComputing);
    }
  }

  [[nodiscard]] __device__ __forceinline__ TimeTable time_table() const {
    return forward_time_table<Shape>(params_.bias);
  }

  __device__ __forceinline__ void compute_tile(QueryTileInfo const& tile) {
    Rows const rows = rows_of(tile);
    OutputRows const output = output_of(tile, rows.place);
    std::uint32_t const queries = shared_address(shared_memory()) + query_.index * Shape::QueryTile::kBytes;

    float scores[kScores];
    std::uint32_t weights[kSteps][4];
    float sums[kSums];

    wait(&state_.key_full[key_.index], key_.parity);
    KeyBlockInfo block = state_.blocks[key_.index];
    take_turn();
    start_scores(scores, queries);
    pass_turn();
    wait_products<0>();
    pin_registers(scores);
    if (block.is_last) release_queries();
    compute_weights(scores, rows, block);
    release_keys();
    pack_weights(scores, weights);

    bool has_sums = false;
    while (!block.is_last) {
      wait(&state_.key_full[key_.index], key_.parity);
      block = state_.blocks[key_.index];
      take_turn();
      start_scores(scores, queries);
      wait(&state_.value_full[value_.index], value_.parity);
      start_sums(sums, weights, has_sums);
      pass_turn();
      wait_products<1>();
      pin_registers(scores);
      if (block.is_last) release_queries();
      compute_weights(scores, rows, block);
      release_keys();
      wait_products<0>();
      pin_registers(sums);
      release_values();
      pack_weights(scores, weights);
      has_sums = true;
    }
    wait(&state_.value_full[value_.index], value_.parity);
    take_turn();
    start_sums(sums, weights, has_sums);
    pass_turn();
    wait_products<0>();
    pin_registers(sums);
    release_values();
    store_rows<T>(sums, output);
  }

  [[nodiscard]] __device__ __forceinline__ OutputRows output_of(QueryTileInfo const& tile,
                                                                FragmentPlace const& place) const {
    HstuSequenceMask const& mask = tile.sequence.mask;
    bool const is_by_length = params_.length_scaling == LengthScaling::kByNumKeys;
    return {params_.out,      tile.sequence.first_query_row,
            tile.head,        place,
            mask.num_queries, is_by_length ? params_.scale / static_cast<float>(mask.num_keys) : params_.scale};
  }

  [[nodiscard]] __device__ __forceinline__ Rows rows_of(QueryTileInfo const& tile) const {
    FragmentPlace const place(tile.first_query + 64 * warpgroup_);
    Rows rows{place, {tile.sequence.mask, place.row}, {}};
    if constexpr (Shape::kHasBias) {
      if (params_.bias.has_time()) {
        std::int64_t times[2];
        for (int r = 0; r < 2; ++r) {
          std::int32_t const query = min(place.row + 8 * r, tile.sequence.mask.num_queries - 1);
          times[r] = __ldg(params_.bias.query_times + tile.sequence.first_query_row + query);
        }
        rows.times.fill(times, tile.base_time, state_.row_times[warp()]);
      }
    }
    return rows;
  }

  __device__ __forceinline__ void start_scores(float (&scores)[kScores], std::uint32_t queries) const {
    std::uint32_t const keys = shared_address(shared_memory()) + Shape::kKeysAt + key_.index * Shape::KeyTile::kBytes;
    pin_registers(scores);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      multiply<T, Major::kSummed, Major::kSummed>(
          scores, Shape::QueryTile::summed_over_columns(queries, 64 * warpgroup_, 16 * step),
          Shape::KeyTile::summed_over_columns(keys, 0, 16 * step), step > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void start_sums(float (&sums)[kSums], std::uint32_t (&weights)[kSteps][4],
                                             bool has_sums) const {
    std::uint32_t const values =
        shared_address(shared_memory()) + Shape::kValuesAt + value_.index * Shape::KeyTile::kBytes;
    pin_registers(sums);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) pin_registers(weights[step]);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply<T, Major::kOther>(sums, weights[step], Shape::KeyTile::summed_over_rows(values, 16 * step, 0),
                                 has_sums || step > 0);
    }
    commit_products();
  }

  /// From products to weights, in place.
  __device__ __forceinline__ void compute_weights(float (&scores)[kScores], Rows const& rows,
                                                  KeyBlockInfo const& block) const {
    bool has_time = false;
    if constexpr (Shape::kHasBias) has_time = params_.bias.has_time();
    if (block.is_whole && !has_time) {
      compute_weights_with_bias<false>(scores, rows, block.first_key);
    } else {
      compute_weights_with_bias<true>(scores, rows, block.first_key);
    }
  }

  template <bool kIsMasked>
  __device__ __forceinline__ void compute_weights_with_bias(float (&scores)[kScores], Rows const& rows,
                                                            std::int32_t first_key) const {
    // Beside the time bias a mask costs little: it is always there, as code with time bias takes long to compile.
    if constexpr (!Shape::kHasBias) {
      compute_weights_of<kIsMasked, false, false, false>(scores, rows, first_key);
    } else if (!kIsMasked || !params_.bias.has_time()) {
      compute_weights_of<kIsMasked, true, false, false>(scores, rows, first_key);
    } else if (time_table().is_crowded()) {
      compute_weights_of<true, true, true, true>(scores, rows, first_key);
    } else if (params_.bias.has_position()) {
      compute_weights_of<true, true, true, false>(scores, rows, first_key);
    } else {
      compute_weights_of<true, false, true, false>(scores, rows, first_key);
    }
  }

  template <bool kIsMasked, bool kMayHavePosition, bool kHasTime, bool kIsCrowded>
  __device__ __forceinline__ void compute_weights_of(float (&scores)[kScores], Rows const& rows,
                                                     std::int32_t first_key) const {
    // Only tables of times with crowded cells, which are rare, ask whether there is a position bias as well.
    bool const has_position = kMayHavePosition && (!kIsCrowded || params_.bias.has_position());
    PositionBias<1> position =
        has_position ? PositionBias<1>(params_.bias, first_key + rows.place.column - rows.visibility.first_token)
                     : PositionBias<1>();
    TimeBias<kIsCrowded> time;
    if constexpr (kHasTime) time = {time_table(), rows.times, state_.row_times[warp()], state_.key_times[key_.index]};
#pragma unroll
    for (int group = 0; group < kScores / 4; ++group) {
      std::int32_t const column = 8 * group;
      float bias[2][2] = {};
      if (has_position) position.move_to(column, bias);
      if constexpr (kHasTime) time.add(group, rows.place.column, bias);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * group + i];
        std::int32_t const key = first_key + rows.place.column + column + i % 2;
        float const sum = kMayHavePosition || kHasTime ? score + bias[i / 2][i % 2] : score;
        float const weight = silu_of_twice(sum * params_.half_alpha);
        score = kIsMasked && !rows.visibility.sees(i / 2, key) ? 0.0F : weight;
      }
    }
  }

  static __device__ __forceinline__ void pack_weights(float const (&scores)[kScores],
                                                      std::uint32_t (&weights)[kSteps][4]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) weights[i / 4][i % 4] = pack<T>(scores[2 * i], scores[2 * i + 1]);
  }

  __device__ __forceinline__ void take_turn() const {
    if constexpr (Shape::kTakesTurns) sync_named(kTurnBarrier + warpgroup_, kTurnThreads);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (Shape::kTakesTurns) arrive_named(kTurnBarrier + (warpgroup_ ^ 1), kTurnThreads);
  }

  /// By each warp for itself.
  static __device__ __forceinline__ void release(Barrier* empty) {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) arrive(empty);
  }
  __device__ __forceinline__ void release_queries() {
    release(&state_.query_empty[query_.index]);
    query_.advance();
  }
  __device__ __forceinline__ void release_keys() {
    release(&state_.key_empty[key_.index]);
    key_.advance();
  }
  __device__ __forceinline__ void release_values() {
    release(&state_.value_empty[value_.index]);
    value_.advance();
  }

  HopperForwardParams const& params_;
  HopperForwardState<Shape>& state_;
  int warpgroup_;
  RingPosition<Shape::kQueryStages> query_;
  RingPosition<Shape::kKeyStages> key_, value_;
};

template <class Shape>
__device__ __forceinline__ void init_forward_barriers() {
  auto& state = forward_state<Shape>();
  constexpr std::uint32_t kComputingWarps = 4 * Shape::kConsumers;
  if (threadIdx.x == 0) {
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
    fence_barrier_init();
  }
  __syncthreads();
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    hopper_forward_kernel(__grid_constant__ HopperForwardMaps const maps,
                          __grid_constant__ HopperForwardParams const params) {
  init_forward_barriers<Shape>();
  if (threadIdx.x < 128) {
    lower_registers<Shape::kProducerRegisters>();
    if (threadIdx.x < kWarpThreads) HopperForwardProducer<Shape>(maps, params).run();
  } else {
    raise_registers<Shape::kConsumerRegisters>();
    HopperForwardConsumer<T, Shape>(params, static_cast<int>(threadIdx.x / 128) - 1).run();
  }
}

}  // namespace headway::kernels
