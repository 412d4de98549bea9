// SPDX-License-Identifier: Apache-2.0
#pragma once

// Consumer of the forward pass on sm_90a: one of two warpgroups, 64 queries of each tile.
//
// Idea: software pipeline over blocks of keys. S of block j + 1 is issued before P V of block j. SiLU turns S of block
// j + 1 into P while P V of block j is in flight. S of the next tile's first block is issued before O is stored. The
// two consumers take turns to issue wgmma (named barriers 1 and 2), so that one computes SiLU while the other uses the
// tensor cores.
//
// Example: three blocks of keys.
//   issue S0, wait, SiLU(S0)
//   issue S1, issue P0 V0, wait for S1, SiLU(S1), wait for P0 V0
//   issue S2, issue P1 V1, wait for S2, SiLU(S2), wait for P1 V1
//   issue P2 V2, wait, issue S0 of the next tile, store O
//
// Invariants: a stage of K is released after its S, a stage of V after its P V, Q after the last S of a tile, the bias
// after it was added. P is the register operand of P V, so it never touches shared memory. warpgroup_wait<1>() means
// that S is complete and P V is still in flight.
// Source: FlashAttention-3 (Shah et al. 2024), sections 3.1 (pingpong) and 3.2 (overlap inside a warpgroup).

#include "cuda/clear_rows.cuh"
#include "hstu/cuda/sm90/forward/state.cuh"
#include "hstu/cuda/sm90/score_block.cuh"
#include "hstu/cuda/sm90/store_rows.cuh"

#include <cstdint>

namespace headway::kernels {

/// Consumer warpgroup: computes 64 rows of each tile of queries. Each thread keeps its accumulators of S and O in
/// registers.
template <class T, class Shape>
class Sm90ForwardConsumer {
 public:
  /// @param warpgroup index of the consumer, 0 or 1
  __device__ __forceinline__ Sm90ForwardConsumer(Sm90ForwardParams const& params, int warpgroup)
      : params_(params), state_(forward_state<Shape>()), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    // Consumer 1 gives the first turn to consumer 0.
    if (Shape::kPingpong && warpgroup_ == 1) named_barrier_arrive(kWarpSchedulerBarrier, kWarpSchedulerThreads);
    float s[kAccS];
    if (!wait_for_tile()) return;
    start_first_s(s);
    warpgroup_wait<0>();
    fence_operand(s);
    while (compute_tile(s)) {
    }
  }

 private:
  static constexpr int kWarpSchedulerBarrier = 1;  ///< Named barrier of consumer 0; consumer 1 has the next one.
  static constexpr int kWarpSchedulerThreads = 256;
  static constexpr int kClearedBarrier = 4;            ///< Named barrier of consumer 0; consumer 1 has the next one.
  static constexpr int kAccS = Shape::kBlockKeys / 2;  ///< Accumulator registers of S per thread.
  static constexpr int kAccO = Shape::kDim / 2;        ///< Accumulator registers of O per thread.
  /// Parts of a P V product. One wgmma for 256 columns needs more registers than a thread has if the block has 512
  /// threads.
  static constexpr int kPvParts = Shape::kDim == 256 && Shape::kHasBias ? 2 : 1;
  static constexpr int kSteps = Shape::kBlockKeys / 16;  ///< wgmma steps of 16 keys in a P V product.
  static_assert(!Shape::kPingpong || Shape::kConsumers == 2);

  /// Per-thread state of a tile.
  struct Rows {
    FragmentCoord coord;
    RowsVisibility visibility;
    float times[2];  ///< Low parts of SplitTime, for the thread's two rows.
  };

  /// Waits for the queries of the next tile. @returns is there one?
  [[nodiscard]] __device__ __forceinline__ bool wait_for_tile() const {
    wait(&state_.query_full[query_.index], query_.parity);
    return !state_.tiles[tile_.index].is_end;
  }

  /// Issues S for the first block of keys of a tile.
  __device__ __forceinline__ void start_first_s(float (&s)[kAccS]) const {
    wait(&state_.key_full[key_.index], key_.parity);
    warp_scheduler_barrier_sync();
    start_s(s);
    warp_scheduler_barrier_arrive();
  }

  /// Computes a tile. The loop issues S of the next block, then P V of the present one; SiLU of the next block runs
  /// while P V is in flight. S of the next tile's first block is issued before O is stored.
  /// @param s accumulator of S for the first block; on return that of the next tile
  /// @returns is there a next tile?
  __device__ __forceinline__ bool compute_tile(float (&s)[kAccS]) {
    Rows const rows = rows_of(state_.tiles[tile_.index]);
    OutputRows const output = output_of(state_.tiles[tile_.index], rows.coord);
    release(&state_.tile_empty[tile_.index]);
    tile_.advance();
    KeyBlockInfo block = state_.blocks[key_.index];
    std::uint32_t p[kSteps][4];
    float acc_o[kAccO];
    finish_s(s, rows, block);
    pack_p(s, p);

    bool accumulate = false;
    while (!block.is_last) {
      wait(&state_.key_full[key_.index], key_.parity);
      block = state_.blocks[key_.index];
      warp_scheduler_barrier_sync();
      start_s(s);
      wait(&state_.value_full[value_.index], value_.parity);
      start_pv(acc_o, p, accumulate);
      warp_scheduler_barrier_arrive();
      warpgroup_wait<1>();
      fence_operand(s);
      // S of this block is complete, P V of the block before still runs.
      finish_s(s, rows, block);
      warpgroup_wait<0>();
      fence_operand(acc_o);
      release_values();
      pack_p(s, p);
      accumulate = true;
    }
    wait(&state_.value_full[value_.index], value_.parity);
    clear_values_behind_sequence();  // Only the last block of keys can reach beyond the sequence.
    warp_scheduler_barrier_sync();
    start_pv(acc_o, p, accumulate);
    warp_scheduler_barrier_arrive();
    warpgroup_wait<0>();
    fence_operand(acc_o);
    release_values();
    if (!wait_for_tile()) {
      store_rows<T>(acc_o, output);
      return false;
    }
    start_first_s(s);  // S of the next tile runs while this tile is stored.
    store_rows<T>(acc_o, output);
    warpgroup_wait<0>();
    fence_operand(s);
    return true;
  }

  /// Turns S into P in place, and releases the stages of Q (after the last block), K and bias.
  __device__ __forceinline__ void finish_s(float (&s)[kAccS], Rows const& rows, KeyBlockInfo const& block) {
    if (block.is_last) release_queries();
    release_keys();
    if constexpr (Shape::kHasBias) add_bias(s, rows);
    if (block.is_whole) {
      compute_p<false>(s, rows, block.first_key);
    } else {
      compute_p<true>(s, rows, block.first_key);
    }
  }

  /// Replaces scores by half_alpha * score + bias, in place. Bias weights in shared memory have the factor already.
  __device__ __forceinline__ void add_bias(float (&s)[kAccS], Rows const& rows) {
    wait(&state_.bias_full[bias_.index], bias_.parity);
    ForwardBiasBlock<Shape> const& block = state_.bias_blocks[bias_.index];
    float factor = params_.half_alpha;
    if (params_.bias.has_position()) {
      FragmentCoord const coord(64 * warpgroup_);
      float const* const first = block.positions.weights + Shape::kBlockQueries - 1 + coord.column - coord.row;
      add_position_bias(s, factor, PositionBias<1>(first));
      factor = 1;
    }
    if (params_.bias.has_time()) {
      wait(&state_.times_full[times_.index][warpgroup_], times_.parity);
      state_.time_values[warpgroup_].template add_to<T>(s, factor, times_.index, rows.times, block.times,
                                                        rows.coord.column);
      release(&state_.times_empty[times_.index][warpgroup_]);
      times_.advance();
    }
    release(&state_.bias_empty[bias_.index]);
    bias_.advance();
  }

  /// Destination of the thread's rows of O.
  [[nodiscard]] __device__ __forceinline__ OutputRows output_of(QueryTileInfo const& tile,
                                                                FragmentCoord const& coord) const {
    HstuSequenceMask const& mask = tile.sequence.mask;
    return {params_.out,      tile.sequence.first_query_row,           tile.head, coord,
            mask.num_queries, scale_of_weights(params_, mask.num_keys)};
  }

  /// State of a tile for this thread: rows, visibility, and times if there is a time bias.
  [[nodiscard]] __device__ __forceinline__ Rows rows_of(QueryTileInfo const& tile) const {
    FragmentCoord const coord(tile.first_query + 64 * warpgroup_);
    Rows rows{coord, {tile.sequence.mask, coord.row}, {}};
    if constexpr (Shape::kHasBias) {
      if (params_.bias.has_time()) {
        RowTimes const times = state_.query_times[tile_.index].times_of_rows(FragmentCoord(64 * warpgroup_).row);
        for (int i = 0; i < 2; ++i) rows.times[i] = times.times[i].low;
      }
    }
    return rows;
  }

  /// Issues S = Q K' for one block of keys, and commits it as a wgmma group.
  __device__ __forceinline__ void start_s(float (&s)[kAccS]) const {
    std::uint32_t const queries = shared_address(shared_memory()) + query_.index * Shape::QueryTile::kBytes;
    std::uint32_t const keys = shared_address(shared_memory()) + Shape::kKeysAt + key_.index * Shape::KeyTile::kBytes;
    fence_operand(s);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      wgmma<T, Major::kK, Major::kK>(s, Shape::QueryTile::k_major(queries, 64 * warpgroup_, 16 * step),
                                     Shape::KeyTile::k_major(keys, 0, 16 * step), step > 0);
    }
    warpgroup_commit();
  }

  /// Issues O (+)= P V with P in registers, and commits it as a wgmma group.
  /// @param accumulate false for the first block of a tile: O is overwritten
  __device__ __forceinline__ void start_pv(float (&acc_o)[kAccO], std::uint32_t (&p)[kSteps][4],
                                           bool accumulate) const {
    std::uint32_t const values =
        shared_address(shared_memory()) + Shape::kValuesAt + value_.index * Shape::KeyTile::kBytes;
    fence_operand(acc_o);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fence_operand(p[step]);
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int part = 0; part < kPvParts; ++part) {
        constexpr int kPartAcc = kAccO / kPvParts;
        auto& of_part = reinterpret_cast<float(&)[kPartAcc]>(acc_o[part * kPartAcc]);
        wgmma<T, Major::kMN>(of_part, p[step], Shape::KeyTile::mn_major(values, 16 * step, part * 2 * kPartAcc),
                             accumulate || step > 0);
      }
    }
    warpgroup_commit();
  }

  /// Zeroes the rows of V behind the end of the sequence (clear_rows.cuh).
  __device__ __forceinline__ void clear_values_behind_sequence() const {
    std::int32_t const num_values = state_.num_values[value_.index];
    if (num_values >= Shape::kBlockKeys) return;
    clear_rows_behind<typename Shape::KeyTile>(
        shared_memory() + Shape::kValuesAt + value_.index * Shape::KeyTile::kBytes, num_values);
    fence_for_wgmma(kClearedBarrier + warpgroup_);
  }

  /// Computes SiLU in place, and zero where the mask hides a pair. With a bias, scores have their factor already.
  template <bool kIsMasked>
  __device__ __forceinline__ void compute_p(float (&s)[kAccS], Rows const& rows, std::int32_t first_key) const {
#pragma unroll
    for (int i = 0; i < kAccS; ++i) {
      std::int32_t const key = first_key + rows.coord.column + i / 4 * 8 + i % 2;
      float const p = silu_of_twice(Shape::kHasBias ? s[i] : s[i] * params_.half_alpha);
      s[i] = kIsMasked && !rows.visibility.of_row(i % 4 / 2).sees(key) ? 0.0F : p;
    }
  }

  /// Rounds P to T and packs it as the register operand of the P V product.
  static __device__ __forceinline__ void pack_p(float const (&s)[kAccS], std::uint32_t (&p)[kSteps][4]) {
#pragma unroll
    for (int i = 0; i < kAccS / 2; ++i) p[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
  }

  /// Pingpong: waits for this consumer's turn to issue wgmma, then hands it to the other one.
  __device__ __forceinline__ void warp_scheduler_barrier_sync() const {
    if constexpr (Shape::kPingpong) named_barrier_sync(kWarpSchedulerBarrier + warpgroup_, kWarpSchedulerThreads);
  }
  __device__ __forceinline__ void warp_scheduler_barrier_arrive() const {
    if constexpr (Shape::kPingpong)
      named_barrier_arrive(kWarpSchedulerBarrier + (warpgroup_ ^ 1), kWarpSchedulerThreads);
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

  Sm90ForwardParams const& params_;
  Sm90ForwardState<Shape>& state_;
  int warpgroup_;
  RingPosition<Shape::kTileStages> tile_;
  RingPosition<Shape::kQueryStages> query_;
  RingPosition<Shape::kKeyStages> key_, value_;
  RingPosition<Shape::kBiasStages> bias_;
  RingPosition<Shape::kTimeStages> times_;
};

}  // namespace headway::kernels
