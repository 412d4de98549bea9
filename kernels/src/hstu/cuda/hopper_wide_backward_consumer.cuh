#pragma once

// Consumer of the backward pass on sm_90a for dim 256 (no bias).
//
// Idea: the accumulators of dK and dV for 64 keys and 256 columns exceed the registers of a thread. So each of the two
// warpgroups owns half of the columns of dK, dV and dQ. S' and dP' are split by queries: a warpgroup computes 32 of the
// 64 queries of a block. Both halves of P' and dS' go through shared memory, since each warpgroup needs all of them.
//
// Example: warpgroup 0 computes S' for queries 0 to 31 and accumulates columns 0 to 127; warpgroup 1 computes queries
// 32 to 63 and columns 128 to 255.
//
// Invariants: the barrier grads_full of a stage completes when all 8 warps have written their part. dQ of the block
// before fills the time until then. An element of dK, dV and dQ has one owner within a tile. Complexity: five products
// per block; P' and dS' are written once and read by both warpgroups.

#include "hstu/cuda/fragment_place.cuh"
#include "hstu/cuda/hopper_backward_state.cuh"
#include "hstu/cuda/hopper_own_query_sums.cuh"
#include "hstu/cuda/score_block.cuh"
#include "hstu/cuda/store_rows.cuh"
#include "hstu/cuda/write_fragments.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Consumer warpgroup for dim 256: owns half of the columns of dK, dV and dQ, and computes S' for half of the queries.
/// P' and dS' go through shared memory, where both consumers read them.
template <class T, class Shape>
class HopperWideBackwardConsumer {
 public:
  /// @param warpgroup index of the consumer, 0 or 1
  __device__ __forceinline__ HopperWideBackwardConsumer(HopperBackwardParams const& params, int warpgroup)
      : params_(params), state_(backward_state<Shape>()), warpgroup_(warpgroup) {}

  /// Works through all tiles of keys until the producer marks the end.
  __device__ __forceinline__ void run() {
    while (true) {
      wait(&state_.keys_full, keys_parity_);
      if (tile().is_end) return;
      wait(&state_.values_full, keys_parity_);
      clear_keys_behind_sequence<Shape>(tile(), 0, warpgroup_);
      compute_tile(tile());
      keys_parity_ ^= 1;
    }
  }

 private:
  static constexpr int kOwnQueries = Shape::kBlockQueries / 2;
  static constexpr int kScores = kOwnQueries / 2;  ///< Accumulator registers of S' per thread.
  /// Accumulator registers of dK, of dV and of dQ per thread.
  static constexpr int kSums = Shape::kQuerySumColumns / 2;
  static constexpr int kSteps = kOwnQueries / 16;
  using SumsPlace = std::conditional_t<Shape::kTakesSequences, OwnSumsPlace, QuerySumsPlace>;

  [[nodiscard]] __device__ __forceinline__ KeyTileInfo const& tile() const { return state_.tiles[keys_parity_]; }

  /// Computes its columns of dK and dV of a tile, and stores them.
  __device__ __forceinline__ void compute_tile(KeyTileInfo const& tile) {
    float key_sums[kSums], value_sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) key_sums[i] = value_sums[i] = 0;
    for (bool is_last = !tile.is_seen; !is_last;) {
      wait(&state_.queries_full[queries_.index], queries_.parity);
      is_last = state_.blocks[queries_.index].is_last;
      compute_block(key_sums, value_sums, is_last);
    }
    if (tile.is_seen) {
      finish_last_block();
    } else {
      release(&state_.values_empty);
    }
    HstuSequenceMask const& mask = tile.sequence.mask;
    FragmentPlace const place(tile.first_key);
    float const scale = scale_of_weights(params_, mask.num_keys);
    std::int64_t const first_row = tile.sequence.first_key_row;
    OutputRows to_key(params_.grad_key, first_row, tile.head, place, mask.num_keys, scale * params_.half_alpha);
    OutputRows to_value(params_.grad_value, first_row, tile.head, place, mask.num_keys, scale);
    to_key.data += first_column();
    to_value.data += first_column();
    release(&state_.keys_empty);
    store_rows<T>(value_sums, to_value);
    store_rows<T>(key_sums, to_key);
  }

  /// Adds one block of queries to dK and dV. dQ of the block before is computed while the other consumer writes its P'
  /// and dS'.
  __device__ __forceinline__ void compute_block(float (&key_sums)[kSums], float (&value_sums)[kSums], bool is_last) {
    if (is_last) {
      clear_queries_behind_sequence<Shape>(tile(), state_.blocks[queries_.index].first_query, queries_.index,
                                           warpgroup_);
    }
    write_weights_and_grads();
    if (is_last) release(&state_.values_empty);
    float query_sums[kSums];
    SumsPlace const before = unfinished_;
    start_query_sums(query_sums, before);
    wait(&state_.grads_full[queries_.index], queries_.parity);
    start_sums(value_sums, Shape::kWeightsAt, Shape::kGradsAt);
    start_sums(key_sums, Shape::kScoresAt, Shape::kQueriesAt);
    unfinished_ = place_of_query_sums();
    wait_products<2>();
    pin_registers(query_sums);
    finish_query_sums(query_sums, before);
    wait_products<0>();
    pin_registers(value_sums);
    pin_registers(key_sums);
    release(&state_.queries_empty[queries_.index]);
    queries_.advance();
  }

  /// Finishes dQ of the tile's last block.
  __device__ __forceinline__ void finish_last_block() {
    float query_sums[kSums];
    start_query_sums(query_sums, unfinished_);
    wait_products<0>();
    pin_registers(query_sums);
    finish_query_sums(query_sums, unfinished_);
    unfinished_ = {};
  }

  /// Computes P' and dS' of its half of the queries, and writes them to shared memory for both consumers.
  __device__ __forceinline__ void write_weights_and_grads() const {
    float scores[kScores], grads[kScores];
    std::uint32_t weights[kSteps][4], grad_scores[kSteps][4];
    start_scores(scores, 0, Shape::kQueriesAt);
    start_scores(grads, Shape::kValuesAt, Shape::kGradsAt);
    wait_products<1>();
    pin_registers(scores);
    if (state_.blocks[queries_.index].is_whole) {
      compute_weights<false>(scores, weights);
    } else {
      compute_weights<true>(scores, weights);
    }
    wait_products<0>();
    pin_registers(grads);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      grad_scores[i / 4][i % 4] = pack<T>(scores[2 * i] * grads[2 * i], scores[2 * i + 1] * grads[2 * i + 1]);
    }
    wait(&state_.grads_empty[queries_.index], queries_.parity ^ 1);
    std::byte* const buffers = shared_memory() + queries_.index * Shape::ScoreTile::kBytes;
    std::int32_t const first_query = kOwnQueries * warpgroup_;
    write_fragments<typename Shape::ScoreTile>(buffers + Shape::kWeightsAt, FragmentPlace(0), weights, first_query);
    write_fragments<typename Shape::ScoreTile>(buffers + Shape::kScoresAt, FragmentPlace(0), grad_scores, first_query);
    fence_async_proxy();
    release(&state_.grads_full[queries_.index]);
  }

  /// Packs P', and replaces scores by the slopes SiLU'.
  template <bool kIsMasked>
  __device__ __forceinline__ void compute_weights(float (&scores)[kScores], std::uint32_t (&weights)[kSteps][4]) const {
    FragmentPlace const place(tile().first_key);
    QueryVisibility const* const queries = state_.visibility[queries_.index] + kOwnQueries * warpgroup_ + place.column;
#pragma unroll
    for (int group = 0; group < kScores / 4; ++group) {
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * group + i];
        bool const is_on = !kIsMasked || queries[8 * group + i % 2].sees(place.row + 8 * (i / 2));
        weight_and_slope(score * params_.half_alpha, is_on, values[i], score);
      }
      weights[group / 2][group % 2 * 2] = pack<T>(values[0], values[1]);
      weights[group / 2][group % 2 * 2 + 1] = pack<T>(values[2], values[3]);
    }
  }

  /// Shared-memory addresses for descriptors; the latter two depend on the stage of queries.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t address_of(std::uint32_t offset) {
    return shared_address(shared_memory()) + offset;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t stage_of(std::uint32_t offset) const {
    return address_of(offset + queries_.index * Shape::QueryTile::kBytes);
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t buffer_of(std::uint32_t offset) const {
    return address_of(offset + queries_.index * Shape::ScoreTile::kBytes);
  }
  [[nodiscard]] __device__ __forceinline__ int first_column() const { return Shape::kQuerySumColumns * warpgroup_; }

  /// Issues the product of K (or V) with this consumer's half of Q (or dO).
  __device__ __forceinline__ void start_scores(float (&scores)[kScores], std::uint32_t rows_at,
                                               std::uint32_t columns_at) const {
    std::uint32_t const rows = address_of(rows_at), columns = stage_of(columns_at);
    pin_registers(scores);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      multiply<T, Major::kSummed, Major::kSummed>(
          scores, Shape::KeyTile::summed_over_columns(rows, 0, 16 * step),
          Shape::QueryTile::summed_over_columns(columns, kOwnQueries * warpgroup_, 16 * step), step > 0);
    }
    commit_products();
  }

  /// Issues a product that sums over queries: dV += P' dO, or dK += dS' Q.
  __device__ __forceinline__ void start_sums(float (&sums)[kSums], std::uint32_t factors_at,
                                             std::uint32_t queries_at) const {
    std::uint32_t const factors = buffer_of(factors_at), queries = stage_of(queries_at);
    pin_registers(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kBlockQueries / 16; ++step) {
      multiply<T, Major::kSummed, Major::kOther>(sums, Shape::ScoreTile::summed_over_columns(factors, 0, 16 * step),
                                                 Shape::QueryTile::summed_over_rows(queries, 16 * step, first_column()),
                                                 true);
    }
    commit_products();
  }

  /// Issues dQ = dS K for the block before. If there is no such block, it computes with whatever is in memory and the
  /// result is dropped: wgmma inside a branch would be serialised.
  __device__ __forceinline__ void start_query_sums(float (&sums)[kSums], SumsPlace const& place) const {
    std::uint32_t const grads = address_of(Shape::kScoresAt + queries_.previous().index * Shape::ScoreTile::kBytes);
    std::uint32_t const keys = address_of(0);
    if constexpr (Shape::kTakesSequences) own_sums().begin(sums, place, tile());
    pin_registers(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kBlockKeys / 16; ++step) {
      multiply<T, Major::kOther, Major::kOther>(sums, Shape::ScoreTile::summed_over_rows(grads, 16 * step, 0),
                                                Shape::KeyTile::summed_over_rows(keys, 16 * step, first_column()),
                                                Shape::kTakesSequences || step > 0);
    }
    commit_products();
  }

  /// Place of the dQ of the present block.
  [[nodiscard]] __device__ __forceinline__ SumsPlace place_of_query_sums() const {
    QueryBlockInfo const& block = state_.blocks[queries_.index];
    if constexpr (Shape::kTakesSequences) {
      return {block.first_query, block.has_before, block.has_behind};
    } else {
      return {2 * (block.tile * params_.num_heads + tile().head) + warpgroup_, block.turn};
    }
  }

  /// Releases the stage of dS, and keeps, stores or adds dQ of a block.
  __device__ __forceinline__ void finish_query_sums(float const (&sums)[kSums], SumsPlace const& place) const {
    if (place.is_none()) return;
    release(&state_.grads_empty[queries_.previous().index]);
    if constexpr (Shape::kTakesSequences) {
      own_sums().finish(sums, place, tile());
    } else {
      add_query_sums_in_turn(sums, place);
    }
  }

  [[nodiscard]] __device__ __forceinline__ HopperOwnQuerySums<T, Shape> own_sums() const {
    return {params_, warpgroup_};
  }

  /// Adds dQ from registers to the workspace by vector reductions, in turn if `turns` is set.
  __device__ __forceinline__ void add_query_sums_in_turn(float const (&sums)[kSums],
                                                         QuerySumsPlace const& place) const {
    bool const is_first = threadIdx.x % 128 == 0;
    std::int32_t* const turn = params_.turns == nullptr ? nullptr : params_.turns + place.part;
    if (turn != nullptr) {
      if (is_first) spin_until([&] { return load_acquire(turn) == place.turn; });
      sync_named(kTurnTaken + warpgroup_, 128);
    }
    float* const part = params_.query_sums + std::int64_t{place.part} * Shape::kQuerySums + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      add_four(part + 512 * i, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    }
    if (turn != nullptr) {
      __threadfence();
      sync_named(kTurnTaken + warpgroup_, 128);
      if (is_first) store_release(turn, place.turn + 1);
    }
  }

  HopperBackwardParams const& params_;
  HopperBackwardState<Shape>& state_;
  int warpgroup_;
  std::uint32_t keys_parity_ = 0;
  RingPosition<Shape::kStages> queries_;
  SumsPlace unfinished_;  ///< Block before the present one, if its dQ is still to be computed.
};

}  // namespace headway::kernels
