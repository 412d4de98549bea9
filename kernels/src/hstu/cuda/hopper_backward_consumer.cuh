#pragma once

// Consumer of the backward pass on sm_90a for dim 32, 64 and 128: one of two warpgroups, 64 keys of each tile.
//
// Idea: per block of 64 queries, S' = K Q' and dP' = V dO' have keys as rows. P' and dS' are then already in the
// register layout of the first operand of dV += P' dO and dK += dS' Q. Only dQ = dS K needs dS' in shared memory. It is
// computed one block late: when a consumer needs the other one's dS', that was written a whole block earlier.
//
// Example: a tile seen by query blocks 0, 1 and 2.
//   block 0: S', dP', SiLU, dV, dK, write dS'
//   block 1: the same, and dQ of block 0
//   block 2: the same, and dQ of block 1
//   end of the tile: dQ of block 2, store dK and dV
//
// Invariants: dQ is always issued, since wgmma inside a branch would be serialised; without a block before, the result
// is dropped. dQ is split by keys or, with kSplitsColumns, by columns, so no two consumers add to the same element
// within a tile in the latter case. A stage of Q and dO is released after dV and dK, a stage of dS' after dQ. V is
// released after the last dP', K after the last dQ of a tile.
// Complexity: five products per block. Registers of a thread: dK and dV take kDim / 2 each, S' and dP' 32 each.

#include "hstu/cuda/fragment_place.cuh"
#include "hstu/cuda/hopper_backward_bias.cuh"
#include "hstu/cuda/hopper_backward_state.cuh"
#include "hstu/cuda/hopper_own_query_sums.cuh"
#include "hstu/cuda/score_block.cuh"
#include "hstu/cuda/store_rows.cuh"
#include "hstu/cuda/write_fragments.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Consumer warpgroup for 64 keys of each tile. It computes S' and dP' with keys as rows. P' and dS' are then in the
/// layout of the register operand of the products for dV and dK, and never leave registers for these.
template <class T, class Shape>
class HopperBackwardConsumer {
 public:
  /// @param warpgroup index of the consumer, 0 or 1
  __device__ __forceinline__ HopperBackwardConsumer(HopperBackwardParams const& params, int warpgroup)
      : params_(params), state_(backward_state<Shape>()), warpgroup_(warpgroup), bias_(params, warpgroup) {}

  /// Works through all tiles of keys until the producer marks the end.
  __device__ __forceinline__ void run() {
    bias_.begin();
    while (true) {
      wait(&barriers().keys_full, keys_.parity);
      if (tile().is_end) break;
      wait(&barriers().values_full, keys_.parity);
      clear_keys_behind_sequence<Shape>(tile(), keys_.index, warpgroup_);
      compute_tile(tile());
      keys_.advance();
    }
    bias_.end();
    if constexpr (!Shape::kTakesSequences) hand_out_sums({});
  }

 private:
  static constexpr int kScores = Shape::kBlockQueries / 2;  ///< Accumulator registers of S' per thread.
  static constexpr int kSums = Shape::kDim / 2;             ///< Accumulator registers of dK, and of dV, per thread.
  static constexpr int kQuerySums = Shape::kQuerySumColumns / 2;  ///< Accumulator registers of dQ per thread.
  static constexpr int kSteps = Shape::kBlockQueries / 16;        ///< wgmma steps of 16 queries.
  using SumsPlace = std::conditional_t<Shape::kTakesSequences, OwnSumsPlace, QuerySumsPlace>;
  using Bias = std::conditional_t<Shape::kHasBias, HopperBackwardBias<T, Shape>, NoBackwardBias<Shape>>;
  using BiasStrip = typename Bias::Strip;

  [[nodiscard]] __device__ __forceinline__ KeyTileInfo const& tile() const { return state_.tile_of(keys_); }
  [[nodiscard]] __device__ __forceinline__ KeyBarriers& barriers() const { return state_.barriers_of(keys_); }

  /// Computes dK and dV of a tile and stores them. Tile data stays in shared memory until it is needed: registers are
  /// few.
  __device__ __forceinline__ void compute_tile(KeyTileInfo const& tile) {
    FragmentPlace const place(tile.first_key + 64 * warpgroup_);
    float key_sums[kSums], value_sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) key_sums[i] = value_sums[i] = 0;
    bias_.begin_tile(tile);
    for (bool is_last = !tile.is_seen; !is_last;) {
      wait(&state_.queries_full[queries_.index], queries_.parity);
      is_last = state_.blocks[queries_.index].is_last;
      compute_block(place, key_sums, value_sums, is_last);
    }
    if (tile.is_seen) {
      finish_last_block();
    } else {
      release(&barriers().values_empty);
    }
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const scale = scale_of_weights(params_, mask.num_keys);
    std::int64_t const first_row = tile.sequence.first_key_row;
    OutputRows const to_key(params_.grad_key, first_row, tile.head, place, mask.num_keys, scale * params_.half_alpha);
    OutputRows const to_value(params_.grad_value, first_row, tile.head, place, mask.num_keys, scale);
    release(&barriers().keys_empty);
    store_rows<T>(value_sums, to_value);
    store_rows<T>(key_sums, to_key);
  }

  /// Adds one block of queries to dK and dV, and computes dQ of the block before. Being one block late, no consumer
  /// waits for dS of the other one.
  ///
  /// wgmma groups in order: S', dP', dV, dK, dQ (block before). SiLU runs while dP' is in flight; the gradients of time
  /// weights are added while dV, dK and dQ are in flight.
  __device__ __forceinline__ void compute_block(FragmentPlace const& place, float (&key_sums)[kSums],
                                                float (&value_sums)[kSums], bool is_last) {
    if constexpr (Shape::kTakesSequences) {
      if ((state_.blocks[queries_.index].seen_parts >> warpgroup_ & 1) == 0) return pass_over_block(is_last);
    }
    if (is_last) {
      clear_queries_behind_sequence<Shape>(tile(), state_.blocks[queries_.index].first_query, queries_.index,
                                           warpgroup_);
    }
    float scores[kScores], grads[kScores];
    std::uint32_t weights[kSteps][4], grad_scores[kSteps][4];  // `grad_scores` first holds SiLU'.
    start_scores(scores, 0, Shape::kQueriesAt);
    start_scores(grads, Shape::kValuesAt, Shape::kGradsAt);
    BiasStrip const strip = bias_.wait_for(queries_);
    wait_products<1>();
    pin_registers(scores);
    compute_weights(scores, strip, weights, grad_scores, place);
    wait_products<0>();
    pin_registers(grads);
    if (is_last) release(&barriers().values_empty);
    start_sums(value_sums, weights, Shape::kGradsAt);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      float2 const factors = unpack<Float16>(grad_scores[i / 4][i % 4]);
      grad_scores[i / 4][i % 4] = pack<T>(factors.x * grads[2 * i], factors.y * grads[2 * i + 1]);
    }
    start_sums(key_sums, grad_scores, Shape::kQueriesAt);
    write_grad_scores(grad_scores);
    SumsPlace const before = unfinished_;
    unfinished_ = place_of_query_sums();
    float query_sums[kQuerySums];
    start_query_sums(query_sums, before);
    bias_.finish(queries_, grad_scores);
    wait_products<1>();
    pin_registers(value_sums);
    pin_registers(key_sums);
    release(&state_.queries_empty[queries_.index]);
    wait_products<0>();
    pin_registers(query_sums);
    finish_query_sums(query_sums, before);
    queries_.advance();
  }

  /// Passes over a block of queries that sees none of this consumer's keys: writes zeros for dS and finishes dQ of the
  /// block before. This matters for short sequences: with a causal mask it is half of each diagonal block.
  __device__ __forceinline__ void pass_over_block(bool is_last) {
    if (is_last) release(&barriers().values_empty);
    std::uint32_t const none[kSteps][4] = {};
    write_grad_scores(none);
    bias_.pass_over(queries_);
    SumsPlace const before = unfinished_;
    unfinished_ = place_of_query_sums();
    release(&state_.queries_empty[queries_.index]);
    float query_sums[kQuerySums];
    start_query_sums(query_sums, before);
    wait_products<0>();
    pin_registers(query_sums);
    finish_query_sums(query_sums, before);
    queries_.advance();
  }

  /// Finishes dQ of the tile's last block.
  __device__ __forceinline__ void finish_last_block() {
    float query_sums[kQuerySums];
    start_query_sums(query_sums, unfinished_);
    wait_products<0>();
    pin_registers(query_sums);
    finish_query_sums(query_sums, unfinished_);
    unfinished_ = {};
  }

  /// Shared-memory addresses for descriptors.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t address_of(std::uint32_t offset) {
    return shared_address(shared_memory()) + offset;
  }

  [[nodiscard]] __device__ __forceinline__ std::uint32_t address_of_keys(std::uint32_t offset) const {
    return address_of(keys_.index * Shape::kKeyStageBytes + offset);
  }

  /// Issues the product of 64 rows of K (or V) with a block of Q (or dO).
  __device__ __forceinline__ void start_scores(float (&scores)[kScores], std::uint32_t rows_at,
                                               std::uint32_t columns_at) const {
    std::uint32_t const rows = address_of_keys(rows_at);
    std::uint32_t const columns = address_of(columns_at + queries_.index * Shape::QueryTile::kBytes);
    pin_registers(scores);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      multiply<T, Major::kSummed, Major::kSummed>(
          scores, Shape::KeyTile::summed_over_columns(rows, 64 * warpgroup_, 16 * step),
          Shape::QueryTile::summed_over_columns(columns, 0, 16 * step), step > 0);
    }
    commit_products();
  }

  /// Issues a product that sums over queries: dV += P' dO, or dK += dS' Q.
  __device__ __forceinline__ void start_sums(float (&sums)[kSums], std::uint32_t (&factors)[kSteps][4],
                                             std::uint32_t queries_at) const {
    std::uint32_t const queries = address_of(queries_at + queries_.index * Shape::QueryTile::kBytes);
    pin_registers(sums);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) pin_registers(factors[step]);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply<T, Major::kOther>(sums, factors[step], Shape::QueryTile::summed_over_rows(queries, 16 * step, 0), true);
    }
    commit_products();
  }

  /// Issues dQ = dS K for the block before, with dS from shared memory. If there is no such block, it computes with
  /// whatever is in memory and the result is dropped: wgmma inside a branch would be serialised.
  __device__ __forceinline__ void start_query_sums(float (&sums)[kQuerySums], SumsPlace const& place) const {
    auto const before = queries_.previous();
    if (!place.is_none()) wait(&state_.grads_full[before.index], before.parity);
    int const first_key = Shape::kSplitsColumns ? 0 : 64 * warpgroup_;
    int const first_column = Shape::kSplitsColumns ? Shape::kQuerySumColumns * warpgroup_ : 0;
    std::uint32_t const grads = address_of(Shape::kScoresAt + before.index * Shape::ScoreTile::kBytes +
                                           first_key * Shape::ScoreTile::kRowBytes);
    std::uint32_t const keys = address_of_keys(first_key * Shape::KeyTile::kRowBytes);
    if constexpr (Shape::kTakesSequences) own_sums().begin(sums, place, tile());
    pin_registers(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kQuerySumKeys / 16; ++step) {
      multiply<T, Major::kOther, Major::kOther>(sums, Shape::ScoreTile::summed_over_rows(grads, 16 * step, 0),
                                                Shape::KeyTile::summed_over_rows(keys, 16 * step, first_column),
                                                Shape::kTakesSequences || step > 0);
    }
    commit_products();
  }

  /// Computes P and dP/dS without the factor alpha/2. dP/dS is kept in fp16 whatever T is, to save registers; it never
  /// exceeds 3, so fp16 is the most exact 16-bit type for it.
  __device__ __forceinline__ void compute_weights(float (&scores)[kScores], BiasStrip const& strip,
                                                  std::uint32_t (&weights)[kSteps][4],
                                                  std::uint32_t (&factors)[kSteps][4],
                                                  FragmentPlace const& place) const {
    if constexpr (!Shape::kHasBias) {
      compute_weights_of_block<ScoreBias::kNone>(scores, weights, factors, place);
    } else if (!params_.bias.has_time()) {
      compute_weights_of_block<ScoreBias::kPosition>(scores, weights, factors, place);
    } else {
      bias_.add_to(scores, strip, queries_, keys_.parity, place);
      compute_weights_of_block<ScoreBias::kAdded>(scores, weights, factors, place);
    }
  }

  /// Selects the masked or the unmasked loop for a block.
  template <ScoreBias kBias>
  __device__ __forceinline__ void compute_weights_of_block(float (&scores)[kScores],
                                                           std::uint32_t (&weights)[kSteps][4],
                                                           std::uint32_t (&factors)[kSteps][4],
                                                           FragmentPlace const& place) const {
    if (state_.blocks[queries_.index].is_whole) {
      compute_weights_of<kBias, false>(scores, weights, factors, place);
    } else {
      compute_weights_of<kBias, true>(scores, weights, factors, place);
    }
  }

  /// Applies position bias (if kPosition), SiLU and mask to the thread's elements, and packs P and SiLU'.
  template <ScoreBias kBias, bool kIsMasked>
  __device__ __forceinline__ void compute_weights_of(float (&scores)[kScores], std::uint32_t (&weights)[kSteps][4],
                                                     std::uint32_t (&factors)[kSteps][4],
                                                     FragmentPlace const& place) const {
    if constexpr (kBias == ScoreBias::kPosition) {
      add_position_bias(scores, params_.half_alpha, bias_.position(queries_));
    }
#pragma unroll
    for (int group = 0; group < kScores / 4; ++group) {
      QueryVisibility const* const seen = state_.visibility[queries_.index] + 8 * group + place.column;
      float values[4], slopes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float const score = scores[4 * group + i];
        float const h = kBias == ScoreBias::kNone ? score * params_.half_alpha : score;
        bool const is_on = !kIsMasked || seen[i % 2].sees(place.row + 8 * (i / 2));
        weight_and_slope(h, is_on, values[i], slopes[i]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weights[group / 2][group % 2 * 2 + r] = pack<T>(values[2 * r], values[2 * r + 1]);
        factors[group / 2][group % 2 * 2 + r] = pack<Float16>(slopes[2 * r], slopes[2 * r + 1]);
      }
    }
  }

  /// Writes dS to shared memory for the dQ product and for HopperBiasGradients.
  __device__ __forceinline__ void write_grad_scores(std::uint32_t const (&grad_scores)[kSteps][4]) const {
    wait(&state_.grads_empty[queries_.index], queries_.parity ^ 1);
    write_fragments<typename Shape::ScoreTile>(
        shared_memory() + Shape::kScoresAt + queries_.index * Shape::ScoreTile::kBytes, FragmentPlace(64 * warpgroup_),
        grad_scores);
    fence_async_proxy();
    release(&state_.grads_full[queries_.index]);
  }

  /// Place of the dQ of the present block.
  [[nodiscard]] __device__ __forceinline__ SumsPlace place_of_query_sums() const {
    QueryBlockInfo const& block = state_.blocks[queries_.index];
    if constexpr (Shape::kTakesSequences) {
      return {block.first_query, block.has_before, block.has_behind};
    } else {
      std::int32_t const place = block.tile * params_.num_heads + tile().head;
      if constexpr (Shape::kSplitsColumns) return {2 * place + warpgroup_, block.turn};
      return {place, block.turn + warpgroup_};
    }
  }

  /// Releases the stage of dS, and keeps, stores or hands out dQ of a block.
  __device__ __forceinline__ void finish_query_sums(float const (&sums)[kQuerySums], SumsPlace const& place) const {
    if (place.is_none()) return;
    release(&state_.grads_empty[queries_.previous().index]);
    if constexpr (Shape::kTakesSequences) {
      own_sums().finish(sums, place, tile());
    } else {
      write_query_sums(sums, place);
    }
  }

  [[nodiscard]] __device__ __forceinline__ HopperOwnQuerySums<T, Shape> own_sums() const {
    return {params_, warpgroup_};
  }

  /// Hands dQ to the warp that adds it to global memory (add_query_sums), through shared memory.
  __device__ __forceinline__ void write_query_sums(float const (&sums)[kQuerySums], QuerySumsPlace const& place) const {
    auto* const part = reinterpret_cast<float4*>(shared_memory() + Shape::kQuerySumsAt) +
                       warpgroup_ * Shape::kQuerySums / 4 + threadIdx.x % 128;
    sync_named(kSumsEmpty + warpgroup_, 128 + kWarpThreads);
#pragma unroll
    for (int i = 0; i < kQuerySums / 4; ++i) {
      part[128 * i] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    }
    fence_async_proxy();
    if (threadIdx.x % 128 == 0) state_.places[warpgroup_] = place;
    arrive_named(kSumsFull + warpgroup_, 128 + kWarpThreads);
  }

  /// Tells that warp that no more dQ will come.
  __device__ __forceinline__ void hand_out_sums(QuerySumsPlace const& place) const {
    sync_named(kSumsEmpty + warpgroup_, 128 + kWarpThreads);
    if (threadIdx.x % 128 == 0) state_.places[warpgroup_] = place;
    arrive_named(kSumsFull + warpgroup_, 128 + kWarpThreads);
  }

  HopperBackwardParams const& params_;
  HopperBackwardState<Shape>& state_;
  int warpgroup_;
  RingPosition<Shape::kKeyStages> keys_;
  RingPosition<Shape::kStages> queries_;
  Bias bias_;
  SumsPlace unfinished_;  ///< Block before the present one, if its dQ is still to be computed.
};

}  // namespace headway::kernels
