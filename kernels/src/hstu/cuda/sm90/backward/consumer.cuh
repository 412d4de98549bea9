// SPDX-License-Identifier: Apache-2.0
#pragma once

// Consumer of the backward pass on sm_90a for dim 32, 64 and 128: one of two warpgroups, 64 keys of each tile.
//
// A prime after a matrix transposes it; SiLU' is the derivative. With kTakesSequences, a block of threads takes all
// tiles of a head of a sequence and keeps its dQ (BackwardWork).
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

#include "hstu/cuda/sm90/backward/bias.cuh"
#include "hstu/cuda/sm90/backward/sequence_acc_dq.cuh"
#include "hstu/cuda/sm90/backward/state.cuh"
#include "hstu/cuda/sm90/fragment_coord.cuh"
#include "hstu/cuda/sm90/score_block.cuh"
#include "hstu/cuda/sm90/store_rows.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Consumer warpgroup for 64 keys of each tile. It computes S' and dP' with keys as rows. P' and dS' are then in the
/// layout of the register operand of the products for dV and dK, and never leave registers for these.
template <class T, class Shape>
class Sm90BackwardConsumer {
 public:
  /// @param warpgroup index of the consumer, 0 or 1
  __device__ __forceinline__ Sm90BackwardConsumer(Sm90BackwardParams const& params, int warpgroup)
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
    if constexpr (!Shape::kTakesSequences) send_dq_coord({});
  }

 private:
  static constexpr int kAccS = Shape::kBlockQueries / 2;    ///< Accumulator registers of S' per thread.
  static constexpr int kAccDkv = Shape::kDim / 2;           ///< Accumulator registers of dK, and of dV, per thread.
  static constexpr int kAccDq = Shape::kDqColumns / 2;      ///< Accumulator registers of dQ per thread.
  static constexpr int kSteps = Shape::kBlockQueries / 16;  ///< wgmma steps of 16 queries.
  using DqCoord = std::conditional_t<Shape::kTakesSequences, SequenceDqCoord, AccDqCoord>;
  using Bias = std::conditional_t<Shape::kHasBias, Sm90BackwardBias<T, Shape>, NoBackwardBias<Shape>>;
  using BiasStrip = typename Bias::Strip;

  [[nodiscard]] __device__ __forceinline__ KeyTileInfo const& tile() const { return state_.tile_of(keys_); }
  [[nodiscard]] __device__ __forceinline__ KeyBarriers& barriers() const { return state_.barriers_of(keys_); }

  /// Computes dK and dV of a tile and stores them. Tile data stays in shared memory until it is needed: registers are
  /// few.
  __device__ __forceinline__ void compute_tile(KeyTileInfo const& tile) {
    FragmentCoord const coord(tile.first_key + 64 * warpgroup_);
    float acc_dk[kAccDkv], acc_dv[kAccDkv];
#pragma unroll
    for (int i = 0; i < kAccDkv; ++i) acc_dk[i] = acc_dv[i] = 0;
    bias_.begin_tile(tile);
    for (bool is_last = !tile.is_seen; !is_last;) {
      wait(&state_.queries_full[queries_.index], queries_.parity);
      is_last = state_.blocks[queries_.index].is_last;
      compute_block(coord, acc_dk, acc_dv, is_last);
    }
    if (tile.is_seen) {
      finish_last_block();
    } else {
      release(&barriers().values_empty);
    }
    HstuSequenceMask const& mask = tile.sequence.mask;
    float const scale = scale_of_weights(params_, mask.num_keys);
    std::int64_t const first_row = tile.sequence.first_key_row;
    OutputRows const to_key(params_.grad_key, first_row, tile.head, coord, mask.num_keys, scale * params_.half_alpha);
    OutputRows const to_value(params_.grad_value, first_row, tile.head, coord, mask.num_keys, scale);
    release(&barriers().keys_empty);
    store_rows<T>(acc_dv, to_value);
    store_rows<T>(acc_dk, to_key);
  }

  /// Adds one block of queries to dK and dV, and computes dQ of the block before. Being one block late, no consumer
  /// waits for dS of the other one.
  ///
  /// wgmma groups in order: S', dP', dV, dK, dQ (block before). SiLU runs while dP' is in flight; the gradients of time
  /// weights are added while dV, dK and dQ are in flight.
  __device__ __forceinline__ void compute_block(FragmentCoord const& coord, float (&acc_dk)[kAccDkv],
                                                float (&acc_dv)[kAccDkv], bool is_last) {
    if constexpr (Shape::kTakesSequences) {
      if ((state_.blocks[queries_.index].seen_parts >> warpgroup_ & 1) == 0) return pass_over_block(is_last);
    }
    if (is_last) {
      clear_queries_behind_sequence<Shape>(tile(), state_.blocks[queries_.index].first_query, queries_.index,
                                           warpgroup_);
    }
    float s[kAccS], dp[kAccS];
    std::uint32_t p[kSteps][4], ds[kSteps][4];  // `ds` first holds SiLU'.
    start_s_or_dp(s, 0, Shape::kQueriesAt);
    start_s_or_dp(dp, Shape::kValuesAt, Shape::kGradOutAt);
    BiasStrip const strip = bias_.wait_for(queries_);
    warpgroup_wait<1>();
    fence_operand(s);
    // S' is complete. dP', which was issued after it, still runs on the tensor cores while this computes SiLU.
    compute_p(s, strip, p, ds, coord);
    warpgroup_wait<0>();
    fence_operand(dp);
    if (is_last) release(&barriers().values_empty);
    start_dk_or_dv(acc_dv, p, Shape::kGradOutAt);
#pragma unroll
    for (int i = 0; i < kAccS / 2; ++i) {
      float2 const factors = unpack<Float16>(ds[i / 4][i % 4]);
      ds[i / 4][i % 4] = pack<T>(factors.x * dp[2 * i], factors.y * dp[2 * i + 1]);
    }
    // `ds` is dS' from here on, rounded to T.
    start_dk_or_dv(acc_dk, ds, Shape::kQueriesAt);
    write_ds(ds);
    DqCoord const before = unfinished_;
    unfinished_ = dq_coord();
    float acc_dq[kAccDq];
    start_dq(acc_dq, before);
    // dV, dK and dQ are in flight now, in this order.
    bias_.finish(queries_, ds);
    warpgroup_wait<1>();
    fence_operand(acc_dv);
    fence_operand(acc_dk);
    // At most one group is unfinished: dQ. It reads K and the dS' of the block before, so Q and dO are free.
    release(&state_.queries_empty[queries_.index]);
    warpgroup_wait<0>();
    fence_operand(acc_dq);
    finish_dq(acc_dq, before);
    queries_.advance();
  }

  /// Passes over a block of queries that sees none of this consumer's keys: writes zeros for dS and finishes dQ of the
  /// block before. This matters for short sequences: with a causal mask it is half of each diagonal block.
  __device__ __forceinline__ void pass_over_block(bool is_last) {
    if (is_last) release(&barriers().values_empty);
    std::uint32_t const none[kSteps][4] = {};
    write_ds(none);
    bias_.pass_over(queries_);
    DqCoord const before = unfinished_;
    unfinished_ = dq_coord();
    release(&state_.queries_empty[queries_.index]);
    float acc_dq[kAccDq];
    start_dq(acc_dq, before);
    warpgroup_wait<0>();
    fence_operand(acc_dq);
    finish_dq(acc_dq, before);
    queries_.advance();
  }

  /// Finishes dQ of the tile's last block.
  __device__ __forceinline__ void finish_last_block() {
    float acc_dq[kAccDq];
    start_dq(acc_dq, unfinished_);
    warpgroup_wait<0>();
    fence_operand(acc_dq);
    finish_dq(acc_dq, unfinished_);
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
  __device__ __forceinline__ void start_s_or_dp(float (&s)[kAccS], std::uint32_t rows_at,
                                                std::uint32_t columns_at) const {
    std::uint32_t const rows = address_of_keys(rows_at);
    std::uint32_t const columns = address_of(columns_at + queries_.index * Shape::QueryTile::kBytes);
    fence_operand(s);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      wgmma<T, Major::kK, Major::kK>(s, Shape::KeyTile::k_major(rows, 64 * warpgroup_, 16 * step),
                                     Shape::QueryTile::k_major(columns, 0, 16 * step), step > 0);
    }
    warpgroup_commit();
  }

  /// Issues a product that sums over queries: dV += P' dO, or dK += dS' Q.
  __device__ __forceinline__ void start_dk_or_dv(float (&acc)[kAccDkv], std::uint32_t (&a)[kSteps][4],
                                                 std::uint32_t queries_at) const {
    std::uint32_t const queries = address_of(queries_at + queries_.index * Shape::QueryTile::kBytes);
    fence_operand(acc);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fence_operand(a[step]);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<T, Major::kMN>(acc, a[step], Shape::QueryTile::mn_major(queries, 16 * step, 0), true);
    }
    warpgroup_commit();
  }

  /// Issues dQ = dS K for the block before, with dS from shared memory. If there is no such block, it computes with
  /// whatever is in memory and the result is dropped: wgmma inside a branch would be serialised.
  __device__ __forceinline__ void start_dq(float (&acc_dq)[kAccDq], DqCoord const& coord) const {
    auto const before = queries_.previous();
    if (!coord.is_none()) wait(&state_.ds_full[before.index], before.parity);
    int const first_key = Shape::kSplitsColumns ? 0 : 64 * warpgroup_;
    int const first_column = Shape::kSplitsColumns ? Shape::kDqColumns * warpgroup_ : 0;
    std::uint32_t const ds =
        address_of(Shape::kDsAt + before.index * Shape::PdsTile::kBytes + first_key * Shape::PdsTile::kRowBytes);
    std::uint32_t const keys = address_of_keys(first_key * Shape::KeyTile::kRowBytes);
    if constexpr (Shape::kTakesSequences) sequence_acc_dq().begin(acc_dq, coord, tile());
    fence_operand(acc_dq);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < Shape::kDqKeys / 16; ++step) {
      wgmma<T, Major::kMN, Major::kMN>(acc_dq, Shape::PdsTile::mn_major(ds, 16 * step, 0),
                                       Shape::KeyTile::mn_major(keys, 16 * step, first_column),
                                       Shape::kTakesSequences || step > 0);
    }
    warpgroup_commit();
  }

  /// Computes P and its derivative by S without the factor alpha/2. The derivative is kept in fp16 whatever T is, to
  /// save registers; it never exceeds 3, so fp16 is the most exact 16-bit type for it.
  __device__ __forceinline__ void compute_p(float (&s)[kAccS], BiasStrip const& strip, std::uint32_t (&p)[kSteps][4],
                                            std::uint32_t (&factors)[kSteps][4], FragmentCoord const& coord) const {
    if constexpr (!Shape::kHasBias) {
      compute_p_of_block<ScoreBias::kNone>(s, p, factors, coord);
    } else if (!params_.bias.has_time()) {
      compute_p_of_block<ScoreBias::kPosition>(s, p, factors, coord);
    } else {
      bias_.add_to(s, strip, queries_, keys_.parity, coord);
      compute_p_of_block<ScoreBias::kAdded>(s, p, factors, coord);
    }
  }

  /// Selects the masked or the unmasked loop for a block.
  template <ScoreBias kBias>
  __device__ __forceinline__ void compute_p_of_block(float (&s)[kAccS], std::uint32_t (&p)[kSteps][4],
                                                     std::uint32_t (&factors)[kSteps][4],
                                                     FragmentCoord const& coord) const {
    if (state_.blocks[queries_.index].is_whole) {
      compute_p_of<kBias, false>(s, p, factors, coord);
    } else {
      compute_p_of<kBias, true>(s, p, factors, coord);
    }
  }

  /// Applies position bias (if kPosition), SiLU and mask to the thread's elements, and packs P and SiLU'.
  template <ScoreBias kBias, bool kIsMasked>
  __device__ __forceinline__ void compute_p_of(float (&s)[kAccS], std::uint32_t (&p)[kSteps][4],
                                               std::uint32_t (&factors)[kSteps][4], FragmentCoord const& coord) const {
    if constexpr (kBias == ScoreBias::kPosition) {
      add_position_bias(s, params_.half_alpha, bias_.position(queries_));
    }
#pragma unroll
    for (int group = 0; group < kAccS / 4; ++group) {
      QueryVisibility const* const seen = state_.visibility[queries_.index] + 8 * group + coord.column;
      float values[4], slopes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float const score = s[4 * group + i];
        float const h = kBias == ScoreBias::kNone ? score * params_.half_alpha : score;
        bool const is_on = !kIsMasked || seen[i % 2].sees(coord.row + 8 * (i / 2));
        silu_and_derivative(h, is_on, values[i], slopes[i]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p[group / 2][group % 2 * 2 + r] = pack<T>(values[2 * r], values[2 * r + 1]);
        factors[group / 2][group % 2 * 2 + r] = pack<Float16>(slopes[2 * r], slopes[2 * r + 1]);
      }
    }
  }

  /// Writes dS to shared memory for the dQ product and for the warpgroup of bias gradients.
  __device__ __forceinline__ void write_ds(std::uint32_t const (&ds)[kSteps][4]) const {
    wait(&state_.ds_empty[queries_.index], queries_.parity ^ 1);
    write_fragments<typename Shape::PdsTile>(shared_memory() + Shape::kDsAt + queries_.index * Shape::PdsTile::kBytes,
                                             FragmentCoord(64 * warpgroup_), ds);
    // wgmma reads shared memory through the async proxy. Without the fence it could miss these ordinary stores.
    fence_async_proxy();
    release(&state_.ds_full[queries_.index]);
  }

  /// Identifies the dQ of the present block: its part of the workspace and the number of additions to that part that
  /// come before, or its queries.
  [[nodiscard]] __device__ __forceinline__ DqCoord dq_coord() const {
    QueryBlockInfo const& block = state_.blocks[queries_.index];
    if constexpr (Shape::kTakesSequences) {
      return {block.first_query, block.has_before, block.has_behind};
    } else {
      std::int32_t const part = block.tile * params_.num_heads + tile().head;
      if constexpr (Shape::kSplitsColumns) return {2 * part + warpgroup_, block.turn};
      return {part, block.turn + warpgroup_};
    }
  }

  /// Releases the stage of dS, and keeps, stores or hands out dQ of a block.
  __device__ __forceinline__ void finish_dq(float const (&acc_dq)[kAccDq], DqCoord const& coord) const {
    if (coord.is_none()) return;
    release(&state_.ds_empty[queries_.previous().index]);
    if constexpr (Shape::kTakesSequences) {
      sequence_acc_dq().finish(acc_dq, coord, tile());
    } else {
      write_acc_dq(acc_dq, coord);
    }
  }

  [[nodiscard]] __device__ __forceinline__ SequenceAccDq<T, Shape> sequence_acc_dq() const {
    return {params_, warpgroup_};
  }

  /// Hands dQ to the warp that adds it to global memory (add_acc_dq), through shared memory.
  __device__ __forceinline__ void write_acc_dq(float const (&acc_dq)[kAccDq], AccDqCoord const& coord) const {
    auto* const part = reinterpret_cast<float4*>(shared_memory() + Shape::kAccDqAt) +
                       warpgroup_ * Shape::kDqElements / 4 + threadIdx.x % 128;
    named_barrier_sync(kDqEmpty + warpgroup_, 128 + kWarpThreads);
#pragma unroll
    for (int i = 0; i < kAccDq / 4; ++i) {
      part[128 * i] = make_float4(acc_dq[4 * i], acc_dq[4 * i + 1], acc_dq[4 * i + 2], acc_dq[4 * i + 3]);
    }
    fence_async_proxy();
    if (threadIdx.x % 128 == 0) state_.dq_coords[warpgroup_] = coord;
    named_barrier_arrive(kDqFull + warpgroup_, 128 + kWarpThreads);
  }

  /// Tells that warp that no more dQ will come.
  __device__ __forceinline__ void send_dq_coord(AccDqCoord const& coord) const {
    named_barrier_sync(kDqEmpty + warpgroup_, 128 + kWarpThreads);
    if (threadIdx.x % 128 == 0) state_.dq_coords[warpgroup_] = coord;
    named_barrier_arrive(kDqFull + warpgroup_, 128 + kWarpThreads);
  }

  Sm90BackwardParams const& params_;
  Sm90BackwardState<Shape>& state_;
  int warpgroup_;
  RingPosition<Shape::kKeyStages> keys_;
  RingPosition<Shape::kStages> queries_;
  Bias bias_;
  DqCoord unfinished_;  ///< Block before the present one, if its dQ is still to be computed.
};

}  // namespace headway::kernels
