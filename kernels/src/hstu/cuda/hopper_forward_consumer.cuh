#pragma once

#include "cuda/clear_rows.cuh"
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
  static constexpr int kClearedBarrier = 4;              ///< And the next, for the second warpgroup.
  static constexpr int kScores = Shape::kBlockKeys / 2;  ///< Of a thread.
  static constexpr int kSums = Shape::kDim / 2;
  /// An instruction takes no more registers than 512 threads have each.
  static constexpr int kSumParts = Shape::kDim == 256 && Shape::kHasBias ? 2 : 1;
  static constexpr int kSteps = Shape::kBlockKeys / 16;
  static_assert(!Shape::kTakesTurns || Shape::kConsumers == 2);

  /// What a thread keeps of a tile.
  struct Rows {
    FragmentPlace place;
    RowsVisibility visibility;
    float times[2];  ///< Low parts.
  };

  /// @returns whether there is one more
  [[nodiscard]] __device__ __forceinline__ bool wait_for_tile() const {
    wait(&state_.query_full[query_.index], query_.parity);
    return !state_.tiles[tile_.index].is_end;
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
    Rows const rows = rows_of(state_.tiles[tile_.index]);
    OutputRows const output = output_of(state_.tiles[tile_.index], rows.place);
    release(&state_.tile_empty[tile_.index]);
    tile_.advance();
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
    clear_values_behind_sequence();  // Only the last block of keys can reach beyond.
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
    if constexpr (Shape::kHasBias) add_bias(scores, rows);
    if (block.is_whole) {
      compute_weights<false>(scores, rows, block.first_key);
    } else {
      compute_weights<true>(scores, rows, block.first_key);
    }
  }

  /// From scores to half_alpha * score + bias, in place.
  __device__ __forceinline__ void add_bias(float (&scores)[kScores], Rows const& rows) {
    wait(&state_.bias_full[bias_.index], bias_.parity);
    ForwardBiasBlock<Shape> const& block = state_.bias_blocks[bias_.index];
    float factor = params_.half_alpha;
    if (params_.bias.has_position()) {
      FragmentPlace const place(64 * warpgroup_);
      float const* const weights = block.positions.weights + Shape::kBlockQueries - 1 + place.column - place.row;
      add_position_bias(scores, factor, PositionBias<1>(weights));
      factor = 1;
    }
    if (params_.bias.has_time()) {
      wait(&state_.times_full[times_.index][warpgroup_], times_.parity);
      state_.time_values[warpgroup_].template add_to<T>(scores, factor, times_.index, rows.times, block.times,
                                                        rows.place.column);
      release(&state_.times_empty[times_.index][warpgroup_]);
      times_.advance();
    }
    release(&state_.bias_empty[bias_.index]);
    bias_.advance();
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
        RowTimes const times = state_.query_times[tile_.index].times_of_rows(FragmentPlace(64 * warpgroup_).row);
        for (int i = 0; i < 2; ++i) rows.times[i] = times.times[i].low;
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
#pragma unroll
      for (int part = 0; part < kSumParts; ++part) {
        constexpr int kPartSums = kSums / kSumParts;
        auto& of_part = reinterpret_cast<float(&)[kPartSums]>(sums[part * kPartSums]);
        multiply<T, Major::kOther>(of_part, weights[step],
                                   Shape::KeyTile::summed_over_rows(values, 16 * step, part * 2 * kPartSums),
                                   has_sums || step > 0);
      }
    }
    commit_products();
  }

  __device__ __forceinline__ void clear_values_behind_sequence() const {
    std::int32_t const num_values = state_.num_values[value_.index];
    if (num_values >= Shape::kBlockKeys) return;
    clear_rows_behind<typename Shape::KeyTile>(
        shared_memory() + Shape::kValuesAt + value_.index * Shape::KeyTile::kBytes, num_values);
    show_writes_to_products(kClearedBarrier + warpgroup_);
  }

  /// From scores, or with a bias what add_bias() makes of them, to weights, in place.
  template <bool kIsMasked>
  __device__ __forceinline__ void compute_weights(float (&scores)[kScores], Rows const& rows,
                                                  std::int32_t first_key) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      std::int32_t const key = first_key + rows.place.column + i / 4 * 8 + i % 2;
      float const weight = silu_of_twice(Shape::kHasBias ? scores[i] : scores[i] * params_.half_alpha);
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
  RingPosition<Shape::kTileStages> tile_;
  RingPosition<Shape::kQueryStages> query_;
  RingPosition<Shape::kKeyStages> key_, value_;
  RingPosition<Shape::kBiasStages> bias_;
  RingPosition<Shape::kTimeStages> times_;
};

}  // namespace headway::kernels
