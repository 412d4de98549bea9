#pragma once

#include "hstu/cuda/hopper_forward_state.cuh"
#include "hstu/cuda/score_block.cuh"
#include "hstu/cuda/store_rows.cuh"

#include <cstdint>

namespace headway::kernels {

/// A warpgroup that computes 64 rows of each tile.
template <class T, class Shape>
class HopperForwardConsumer {
 public:
  /// @param warpgroup of those that compute
  __device__ __forceinline__ HopperForwardConsumer(HopperForwardParams const& params, int warpgroup)
      : params_(params), state_(forward_state<Shape>()), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    prepare_forward_time_table<Shape>(params_);
    // The first may begin.
    if (Shape::kTakesTurns && warpgroup_ == 1) arrive_named(kTurnBarrier, kTurnThreads);
    float scores[kScores];
    if (!wait_for_tile()) return;
    start_first_scores(scores);
    wait_products<0>();
    pin_registers(scores);
    while (compute_tile(scores)) {
    }
  }

 private:
  static constexpr int kTurnBarrier = 1;  ///< And the next, for the second warpgroup.
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

  [[nodiscard]] __device__ __forceinline__ TimeTable time_table() const {
    return forward_time_table<Shape>(params_.bias);
  }

  /// @returns whether there is one more
  [[nodiscard]] __device__ __forceinline__ bool wait_for_tile() const {
    wait(&state_.query_full[query_.index], query_.parity);
    return !state_.tiles[query_.index].is_end;
  }

  __device__ __forceinline__ void start_first_scores(float (&scores)[kScores]) const {
    wait(&state_.key_full[key_.index], key_.parity);
    take_turn();
    start_scores(scores);
    pass_turn();
  }

  /// @param scores of the first keys; at the end those of the next tile
  /// @returns whether there is one more
  __device__ __forceinline__ bool compute_tile(float (&scores)[kScores]) {
    Rows const rows = rows_of(state_.tiles[query_.index]);
    OutputRows const output = output_of(state_.tiles[query_.index], rows.place);
    KeyBlockInfo block = state_.blocks[key_.index];
    std::uint32_t weights[kSteps][4];
    float sums[kSums];
    finish_scores(scores, rows, block);
    pack_weights(scores, weights);

    bool has_sums = false;
    while (!block.is_last) {
      wait(&state_.key_full[key_.index], key_.parity);
      block = state_.blocks[key_.index];
      take_turn();
      start_scores(scores);
      wait(&state_.value_full[value_.index], value_.parity);
      start_sums(sums, weights, has_sums);
      pass_turn();
      wait_products<1>();
      pin_registers(scores);
      finish_scores(scores, rows, block);
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
    if (!wait_for_tile()) {
      store_rows<T>(sums, output);
      return false;
    }
    start_first_scores(scores);  // They are computed while this tile is written.
    store_rows<T>(sums, output);
    wait_products<0>();
    pin_registers(scores);
    return true;
  }

  /// Makes weights of scores, and gives back what they were made of.
  __device__ __forceinline__ void finish_scores(float (&scores)[kScores], Rows const& rows, KeyBlockInfo const& block) {
    if (block.is_last) release_queries();
    release_keys();
    if constexpr (Shape::kHasBias) wait(&state_.bias_full[bias_.index], bias_.parity);
    compute_weights(scores, rows, block);
    if constexpr (Shape::kHasBias) {
      release(&state_.bias_empty[bias_.index]);
      bias_.advance();
    }
  }

  [[nodiscard]] __device__ __forceinline__ OutputRows output_of(QueryTileInfo const& tile,
                                                                FragmentPlace const& place) const {
    HstuSequenceMask const& mask = tile.sequence.mask;
    return {params_.out,      tile.sequence.first_query_row,           tile.head, place,
            mask.num_queries, scale_of_weights(params_, mask.num_keys)};
  }

  [[nodiscard]] __device__ __forceinline__ Rows rows_of(QueryTileInfo const& tile) const {
    FragmentPlace const place(tile.first_query + 64 * warpgroup_);
    Rows rows{place, {tile.sequence.mask, place.row}, {}};
    if constexpr (Shape::kHasBias) {
      if (params_.bias.has_time()) {
        rows.times = state_.query_times[query_.index].times_of_rows(FragmentPlace(64 * warpgroup_).row);
      }
    }
    return rows;
  }

  __device__ __forceinline__ void start_scores(float (&scores)[kScores]) const {
    std::uint32_t const queries = shared_address(shared_memory()) + query_.index * Shape::QueryTile::kBytes;
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

  /// From products to weights, in place. A time bias comes first, as its code has branches; so one is enough.
  __device__ __forceinline__ void compute_weights(float (&scores)[kScores], Rows const& rows,
                                                  KeyBlockInfo const& block) const {
    if constexpr (!Shape::kHasBias) {
      compute_weights_of_block<ScoreBias::kNone>(scores, rows, block);
    } else if (!params_.bias.has_time()) {
      compute_weights_of_block<ScoreBias::kPosition>(scores, rows, block);
    } else {
      float factor = params_.half_alpha;
      if (params_.bias.has_position()) {
        add_position_bias(scores, params_.half_alpha, position_bias());
        factor = 1;
      }
      auto const& of_block = state_.bias_blocks[bias_.index];
      add_time_bias(scores, factor, of_block.time_bias, warp(), of_block.times, rows.times, rows.place.column,
                    time_table(), chunks_seen(rows, block));
      compute_weights_of_block<ScoreBias::kAdded>(scores, rows, block);
    }
  }

  /// Chunks of the present keys of which some row of this warp sees some, by the bits of their first groups.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t chunks_seen(Rows const& rows,
                                                                     KeyBlockInfo const& block) const {
    if (block.is_whole) return ~0u;
    constexpr int kChunkKeys = Shape::kBiasChunk, kChunks = Shape::kBlockKeys / kChunkKeys;
    static_assert(kChunks <= 4);  // Each lane of four that have the same rows looks at one.
    std::int32_t const first_key = block.first_key + static_cast<std::int32_t>(threadIdx.x % 4) * kChunkKeys;
    bool const sees = rows.visibility.of_row(0).sees_some(first_key, kChunkKeys) |
                      rows.visibility.of_row(1).sees_some(first_key, kChunkKeys);
    std::uint32_t const lanes = __ballot_sync(kAllLanes, sees);
    std::uint32_t chunks = 0;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if ((lanes & 0x11111111u << chunk) != 0) chunks |= 1u << chunk * (kChunkKeys / 8);
    }
    return chunks;
  }

  [[nodiscard]] __device__ __forceinline__ PositionBias<1> position_bias() const {
    FragmentPlace const place(64 * warpgroup_);
    return PositionBias<1>(state_.bias_blocks[bias_.index].positions.weights + Shape::kBlockQueries - 1 + place.column -
                           place.row);
  }

  template <ScoreBias kBias>
  __device__ __forceinline__ void compute_weights_of_block(float (&scores)[kScores], Rows const& rows,
                                                           KeyBlockInfo const& block) const {
    if (block.is_whole) {
      compute_weights_of<kBias, false>(scores, rows, block.first_key);
    } else {
      compute_weights_of<kBias, true>(scores, rows, block.first_key);
    }
  }

  template <ScoreBias kBias, bool kIsMasked>
  __device__ __forceinline__ void compute_weights_of(float (&scores)[kScores], Rows const& rows,
                                                     std::int32_t first_key) const {
    if constexpr (kBias == ScoreBias::kPosition) {
      add_position_bias(scores, params_.half_alpha, position_bias());
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      std::int32_t const key = first_key + rows.place.column + i / 4 * 8 + i % 2;
      float const weight = silu_of_twice(kBias == ScoreBias::kNone ? scores[i] * params_.half_alpha : scores[i]);
      scores[i] = kIsMasked && !rows.visibility.of_row(i % 4 / 2).sees(key) ? 0.0F : weight;
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
  RingPosition<Shape::kBiasStages> bias_;
};

}  // namespace headway::kernels
