// SPDX-License-Identifier: Apache-2.0
#pragma once

// Consumer of the backward pass on sm_90a for dim 256 (no bias).
//
// S' = K Q', P' = SiLU(S') with the mask, dP' = V dO', and dS' is the gradient of S'. A prime means transposed: rows
// are keys.
//
// Idea: the accumulators of dK and dV for 64 keys and 256 columns exceed the registers of a thread. So each of the two
// warpgroups owns half of the columns of dK, dV and dQ. S' and dP' are split by queries: a warpgroup computes 32 of the
// 64 queries of a block. Both halves of P' and dS' go through shared memory, since each warpgroup needs all of them.
//
// Example: warpgroup 0 computes S' for queries 0 to 31 and accumulates columns 0 to 127; warpgroup 1 computes queries
// 32 to 63 and columns 128 to 255.
//
// Invariants: the barrier ds_full of a stage completes when all 8 warps have written their part. dQ of the block
// before fills the time until then. An element of dK, dV and dQ has one owner within a tile. Complexity: five products
// per block; P' and dS' are written once and read by both warpgroups.

#include "hstu/cuda/sm90/backward/sequence_acc_dq.cuh"
#include "hstu/cuda/sm90/backward/state.cuh"
#include "hstu/cuda/sm90/fragment_coord.cuh"
#include "hstu/cuda/sm90/score_block.cuh"
#include "hstu/cuda/sm90/store_rows.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Consumer warpgroup for dim 256: owns half of the columns of dK, dV and dQ, and computes S' for half of the queries.
/// P' and dS' go through shared memory, where both consumers read them.
template <class T, class Shape>
class Sm90WideBackwardConsumer {
 public:
  /// @param warpgroup index of the consumer, 0 or 1
  __device__ __forceinline__ Sm90WideBackwardConsumer(Sm90BackwardParams const& params, int warpgroup)
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
  static constexpr int kAccS = kOwnQueries / 2;  ///< Accumulator registers of S' per thread.
  /// Accumulator registers of dK, of dV and of dQ per thread.
  static constexpr int kAccDkv = Shape::kDqColumns / 2;
  static constexpr int kSteps = kOwnQueries / 16;
  using DqCoord = std::conditional_t<Shape::kTakesSequences, SequenceDqCoord, AccDqCoord>;

  [[nodiscard]] __device__ __forceinline__ KeyTileInfo const& tile() const { return state_.tiles[keys_parity_]; }

  /// Computes its columns of dK and dV of a tile, and stores them.
  __device__ __forceinline__ void compute_tile(KeyTileInfo const& tile) {
    float acc_dk[kAccDkv], acc_dv[kAccDkv];
#pragma unroll
    for (int i = 0; i < kAccDkv; ++i) acc_dk[i] = acc_dv[i] = 0;
    for (bool is_last = !tile.is_seen; !is_last;) {
      wait(&state_.queries_full[queries_.index], queries_.parity);
      is_last = state_.blocks[queries_.index].is_last;
      compute_block(acc_dk, acc_dv, is_last);
    }
    if (tile.is_seen) {
      finish_last_block();
    } else {
      release(&state_.values_empty);
    }
    HstuSequenceMask const& mask = tile.sequence.mask;
    FragmentCoord const coord(tile.first_key);
    float const scale = scale_of_weights(params_, mask.num_keys);
    std::int64_t const first_row = tile.sequence.first_key_row;
    OutputRows to_key(params_.grad_key, first_row, tile.head, coord, mask.num_keys, scale * params_.half_alpha);
    OutputRows to_value(params_.grad_value, first_row, tile.head, coord, mask.num_keys, scale);
    to_key.data += first_column();
    to_value.data += first_column();
    release(&state_.keys_empty);
    store_rows<T>(acc_dv, to_value);
    store_rows<T>(acc_dk, to_key);
  }

  /// Adds one block of queries to dK and dV. dQ of the block before is computed while the other consumer writes its P'
  /// and dS'.
  __device__ __forceinline__ void compute_block(float (&acc_dk)[kAccDkv], float (&acc_dv)[kAccDkv], bool is_last) {
    if (is_last) {
      clear_queries_behind_sequence<Shape>(tile(), state_.blocks[queries_.index].first_query, queries_.index,
                                           warpgroup_);
    }
    write_p_and_ds();
    if (is_last) release(&state_.values_empty);
    float acc_dq[kAccDkv];
    DqCoord const before = unfinished_;
    start_dq(acc_dq, before);
    // The other consumer's halves of P' and dS' are needed from here on.
    wait(&state_.ds_full[queries_.index], queries_.parity);
    start_dk_or_dv(acc_dv, Shape::kPAt, Shape::kGradOutAt);
    start_dk_or_dv(acc_dk, Shape::kDsAt, Shape::kQueriesAt);
    unfinished_ = dq_coord();
    // At most two groups are unfinished, dV and dK: dQ of the block before is complete.
    warpgroup_wait<2>();
    fence_operand(acc_dq);
    finish_dq(acc_dq, before);
    warpgroup_wait<0>();
    fence_operand(acc_dv);
    fence_operand(acc_dk);
    release(&state_.queries_empty[queries_.index]);
    queries_.advance();
  }

  /// Finishes dQ of the tile's last block.
  __device__ __forceinline__ void finish_last_block() {
    float acc_dq[kAccDkv];
    start_dq(acc_dq, unfinished_);
    warpgroup_wait<0>();
    fence_operand(acc_dq);
    finish_dq(acc_dq, unfinished_);
    unfinished_ = {};
  }

  /// Computes P' and dS' of its half of the queries, and writes them to shared memory for both consumers.
  __device__ __forceinline__ void write_p_and_ds() const {
    float s[kAccS], dp[kAccS];
    std::uint32_t p[kSteps][4], ds[kSteps][4];
    start_s_or_dp(s, 0, Shape::kQueriesAt);
    start_s_or_dp(dp, Shape::kValuesAt, Shape::kGradOutAt);
    warpgroup_wait<1>();
    fence_operand(s);
    if (state_.blocks[queries_.index].is_whole) {
      compute_p<false>(s, p);
    } else {
      compute_p<true>(s, p);
    }
    warpgroup_wait<0>();
    fence_operand(dp);
#pragma unroll
    for (int i = 0; i < kAccS / 2; ++i) {
      ds[i / 4][i % 4] = pack<T>(s[2 * i] * dp[2 * i], s[2 * i + 1] * dp[2 * i + 1]);
    }
    wait(&state_.ds_empty[queries_.index], queries_.parity ^ 1);
    std::byte* const buffers = shared_memory() + queries_.index * Shape::PdsTile::kBytes;
    std::int32_t const first_query = kOwnQueries * warpgroup_;
    write_fragments<typename Shape::PdsTile>(buffers + Shape::kPAt, FragmentCoord(0), p, first_query);
    write_fragments<typename Shape::PdsTile>(buffers + Shape::kDsAt, FragmentCoord(0), ds, first_query);
    // wgmma of both consumers reads these stores through the async proxy.
    fence_async_proxy();
    release(&state_.ds_full[queries_.index]);
  }

  /// Packs P', and replaces scores by the slopes of SiLU (silu_and_derivative()).
  template <bool kIsMasked>
  __device__ __forceinline__ void compute_p(float (&s)[kAccS], std::uint32_t (&p)[kSteps][4]) const {
    FragmentCoord const coord(tile().first_key);
    QueryVisibility const* const queries = state_.visibility[queries_.index] + kOwnQueries * warpgroup_ + coord.column;
#pragma unroll
    for (int group = 0; group < kAccS / 4; ++group) {
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[4 * group + i];
        bool const is_on = !kIsMasked || queries[8 * group + i % 2].sees(coord.row + 8 * (i / 2));
        silu_and_derivative(score * params_.half_alpha, is_on, values[i], score);
      }
      p[group / 2][group % 2 * 2] = pack<T>(values[0], values[1]);
      p[group / 2][group % 2 * 2 + 1] = pack<T>(values[2], values[3]);
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
    return address_of(offset + queries_.index * Shape::PdsTile::kBytes);
  }
  [[nodiscard]] __device__ __forceinline__ int first_column() const { return Shape::kDqColumns * warpgroup_; }

  /// Issues the product of K (or V) with this consumer's half of Q (or dO).
  __device__ __forceinline__ void start_s_or_dp(float (&s)[kAccS], std::uint32_t rows_at,
                                                std::uint32_t columns_at) const {
    std::uint32_t const rows = address_of(rows_at), columns = stage_of(columns_at);
    fence_operand(s);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      wgmma<T, Major::kK, Major::kK>(s, Shape::KeyTile::k_major(rows, 0, 16 * step),
                                     Shape::QueryTile::k_major(columns, kOwnQueries * warpgroup_, 16 * step), step > 0);
    }
    warpgroup_commit();
  }

  /// Issues a product that sums over queries: dV += P' dO, or dK += dS' Q.
  __device__ __forceinline__ void start_dk_or_dv(float (&acc)[kAccDkv], std::uint32_t factors_at,
                                                 std::uint32_t queries_at) const {
    std::uint32_t const a = buffer_of(factors_at), queries = stage_of(queries_at);
    fence_operand(acc);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < Shape::kBlockQueries / 16; ++step) {
      wgmma<T, Major::kK, Major::kMN>(acc, Shape::PdsTile::k_major(a, 0, 16 * step),
                                      Shape::QueryTile::mn_major(queries, 16 * step, first_column()), true);
    }
    warpgroup_commit();
  }

  /// Issues dQ = dS K for the block before. If there is no such block, it computes with whatever is in memory and the
  /// result is dropped: wgmma inside a branch would be serialised.
  __device__ __forceinline__ void start_dq(float (&acc_dq)[kAccDkv], DqCoord const& coord) const {
    std::uint32_t const ds = address_of(Shape::kDsAt + queries_.previous().index * Shape::PdsTile::kBytes);
    std::uint32_t const keys = address_of(0);
    if constexpr (Shape::kTakesSequences) sequence_acc_dq().begin(acc_dq, coord, tile());
    fence_operand(acc_dq);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < Shape::kBlockKeys / 16; ++step) {
      wgmma<T, Major::kMN, Major::kMN>(acc_dq, Shape::PdsTile::mn_major(ds, 16 * step, 0),
                                       Shape::KeyTile::mn_major(keys, 16 * step, first_column()),
                                       Shape::kTakesSequences || step > 0);
    }
    warpgroup_commit();
  }

  /// Identifies the dQ of the present block: its part of the workspace and its turn, or its queries.
  [[nodiscard]] __device__ __forceinline__ DqCoord dq_coord() const {
    QueryBlockInfo const& block = state_.blocks[queries_.index];
    if constexpr (Shape::kTakesSequences) {
      return {block.first_query, block.has_before, block.has_behind};
    } else {
      return {2 * (block.tile * params_.num_heads + tile().head) + warpgroup_, block.turn};
    }
  }

  /// Releases the stage of dS, and keeps, stores or adds dQ of a block.
  __device__ __forceinline__ void finish_dq(float const (&acc_dq)[kAccDkv], DqCoord const& coord) const {
    if (coord.is_none()) return;
    release(&state_.ds_empty[queries_.previous().index]);
    if constexpr (Shape::kTakesSequences) {
      sequence_acc_dq().finish(acc_dq, coord, tile());
    } else {
      add_acc_dq_in_turn(acc_dq, coord);
    }
  }

  [[nodiscard]] __device__ __forceinline__ SequenceAccDq<T, Shape> sequence_acc_dq() const {
    return {params_, warpgroup_};
  }

  /// Adds dQ from registers to the workspace by vector reductions, in turn if `dq_semaphore` is set.
  __device__ __forceinline__ void add_acc_dq_in_turn(float const (&acc_dq)[kAccDkv], AccDqCoord const& coord) const {
    bool const is_first = threadIdx.x % 128 == 0;
    std::int32_t* const turn = params_.dq_semaphore == nullptr ? nullptr : params_.dq_semaphore + coord.part;
    if (turn != nullptr) {
      if (is_first) spin_until([&] { return load_acquire(turn) == coord.turn; });
      named_barrier_sync(kDqTurn + warpgroup_, 128);
    }
    float* const part = params_.acc_dq + std::int64_t{coord.part} * Shape::kDqElements + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < kAccDkv / 4; ++i) {
      red_add_v4(part + 512 * i, make_float4(acc_dq[4 * i], acc_dq[4 * i + 1], acc_dq[4 * i + 2], acc_dq[4 * i + 3]));
    }
    // All threads' additions come before the release of the turn.
    if (turn != nullptr) {
      __threadfence();
      named_barrier_sync(kDqTurn + warpgroup_, 128);
      if (is_first) store_release(turn, coord.turn + 1);
    }
  }

  Sm90BackwardParams const& params_;
  Sm90BackwardState<Shape>& state_;
  int warpgroup_;
  std::uint32_t keys_parity_ = 0;
  RingPosition<Shape::kStages> queries_;
  DqCoord unfinished_;  ///< Block before the present one, if its dQ is still to be computed.
};

}  // namespace headway::kernels
