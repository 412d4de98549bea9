// SPDX-License-Identifier: Apache-2.0
#pragma once

// Producers of the backward pass on sm_90a, and the warps that add dQ to global memory.
//
// Idea: warp 0 (Sm90BackwardProducer) takes tiles of keys, or heads of sequences, from the schedule. It loads K and V
// of a tile, then Q and dO of each block that sees the tile. With each block it publishes QueryBlockInfo and, per
// query, the range of visible keys (QueryVisibility). Warp 3 (Sm90BackwardBiasProducer) prepares the bias. Warps 1
// and 2 (add_acc_dq, BackwardWork::kTiles only) serve one consumer each: they add its dQ from shared memory to the
// float32 dQ in the workspace by bulk reductions.
//
// A turn is the place of a tile in the fixed order of additions to one part of dQ (block of queries, head, columns of a
// consumer). There are turns only if `dq_semaphore` is set, for deterministic gradients.
//
// Example of turns (causal): query block 4 sees the key tiles 0, 1 and 2. Tile 2 adds to its dQ first (turn 0), then
// tile 1, then tile 0. Each of them waits until the counter of that part of dQ has reached its turn, adds, and
// increments the counter.
//
// Invariants: with turns, tiles are taken from the last keys to the first, all from one counter. The tiles that a tile
// waits for are therefore done or in work by a running block of threads: no deadlock. The release of a turn follows the
// completion of its additions (bulk_wait_group, __threadfence, store_release), and the next one acquires it.
// Complexity: Q and dO are loaded once per tile of keys that they see; dQ costs one float32 addition per element and
// tile, or two without kSplitsColumns.

#include "hstu/cuda/sm90/backward/state.cuh"
#include "hstu/cuda/tile/visible_blocks.cuh"

#include <cstdint>

namespace headway::kernels {

/// Producer warp: loads tiles of K and V, then the blocks of Q and dO that see them.
template <class Shape>
class Sm90BackwardProducer {
 public:
  __device__ __forceinline__ Sm90BackwardProducer(Sm90BackwardMaps const& maps, Sm90BackwardParams const& params)
      : maps_(maps), params_(params), state_(backward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    // Order of tiles: most queries see the first keys, so these tiles come first. With turns the order is reversed,
    // since a tile waits for those with later keys. Deadlock is impossible: every number comes from the counter, so the
    // awaited tiles have been taken before, by blocks that run. With a causal mask they also reach the queries early.
    auto const num_blocks = static_cast<std::int32_t>(gridDim.x);
    TileCounter const counter{params_.tiles_taken, is_deterministic() ? 0 : num_blocks};
    HstuSequences const& sequences = params_.sequences;
    TileSchedule schedule(sequences.key_offsets, sequences.num_sequences, params_.num_heads, sequences.max_keys,
                          Shape::kBlockKeys, params_.section_sequences, order());
    SequenceTile tile;
    std::int32_t next = is_deterministic() ? counter.next(0) : static_cast<std::int32_t>(blockIdx.x);
    for (std::int32_t tile_index = next; schedule.find(tile_index, tile); tile_index = next) {
      next = counter.next(tile_index);
      if constexpr (Shape::kTakesSequences) {
        while (load_tile(tile)) ++tile.block;
      } else {
        load_tile(tile);
      }
    }
    wait(&barriers().keys_empty, keys_.parity ^ 1);
    if (is_first_lane()) {
      tile_info().is_end = true;
      if constexpr (Shape::kHasBias) arrive(&state_.tile_known[keys_.parity]);
      arrive(&barriers().keys_full);
    }
  }

 private:
  using Blocks = VisibleBlocks<QueriesThatSee, Shape::kBlockQueries>;
  /// L2 hint. A block that takes a sequence reads queries again for each tile of keys, but soon after, and dQ needs the
  /// cache.
  static constexpr TileReads kReads = Shape::kTakesSequences ? TileReads::kOnce : TileReads::kOften;

  [[nodiscard]] static __device__ __forceinline__ std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
  }
  [[nodiscard]] __device__ __forceinline__ bool is_deterministic() const {
    return !Shape::kTakesSequences && params_.dq_semaphore != nullptr;
  }

  [[nodiscard]] __device__ __forceinline__ BlockOrder order() const {
    if (Shape::kTakesSequences) return BlockOrder::kFirstOnly;
    return is_deterministic() ? BlockOrder::kLastFirst : BlockOrder::kFirstFirst;
  }

  /// Description of the present tile. The tile that had this slot is finished: its keys have been replaced.
  [[nodiscard]] __device__ __forceinline__ KeyTileInfo& tile_info() const { return state_.tile_of(keys_); }
  [[nodiscard]] __device__ __forceinline__ KeyBarriers& barriers() const { return state_.barriers_of(keys_); }

  /// Loads a tile and all blocks of queries that see it. @returns are there keys behind the tile?
  __device__ __forceinline__ bool load_tile(SequenceTile const& tile) {
    describe_tile(tile);
    // A reference into shared memory, as this warp has few registers.
    HstuSequenceMask const& mask = tile_info().sequence.mask;
    std::int32_t const first_key = tile_info().first_key;
    Blocks blocks({mask, first_key, min(first_key + Shape::kBlockKeys, mask.num_keys)});
    if (is_first_lane()) tile_info().is_seen = !blocks.is_done();
    // With one stage of keys, the first queries can arrive while keys of the previous tile are still in use. Values are
    // released before keys, so they are loaded first.
    if (Shape::kKeyStages == 1 && !blocks.is_done()) load_queries(blocks, tile.sequence);
    load_keys(&maps_.value, Shape::kValuesAt, &barriers().values_full, &barriers().values_empty);
    load_keys(&maps_.key, 0, &barriers().keys_full, &barriers().keys_empty);
    while (!blocks.is_done()) load_queries(blocks, tile.sequence);
    keys_.advance();
    return first_key + Shape::kBlockKeys < mask.num_keys;
  }

  /// Publishes the tile's description, and its times for the warp that prepares the bias.
  __device__ __forceinline__ void describe_tile(SequenceTile const& tile) {
    SequenceView const sequence(params_.sequences, params_.mask, tile.sequence);
    if constexpr (Shape::kTakesSequences) {
      // A sequence longer than announced has no room for its dQ. This is a trap because an assertion is a call, which
      // would serialise wgmma.
      bool const has_room = sequence.mask.num_keys <= params_.sequences.max_keys &&
                            sequence.mask.num_queries <= params_.sequences.max_queries;
      if (!has_room) __trap();
    }
    std::int32_t const first_key = tile.block * Shape::kBlockKeys;
    std::int64_t base_time = 0;
    if constexpr (Shape::kHasBias) {
      if (params_.bias.has_time()) {
        std::int64_t const* const times = params_.bias.key_times + sequence.first_key_row + first_key;
        base_time = __ldg(times);
        state_.key_times[keys_.parity].fill(times, sequence.mask.num_keys - first_key, base_time);
      }
    }
    // After this the lane that arrives sees the writes of the other lanes.
    __syncwarp();
    if (is_first_lane()) {
      tile_info() = {sequence, tile.head, first_key, base_time, false, false};
      if constexpr (Shape::kHasBias) arrive(&state_.tile_known[keys_.parity]);
    }
    __syncwarp();
  }

  /// Loads a tile of keys or values by TMA.
  __device__ __forceinline__ void load_keys(TensorMap const* map, std::uint32_t at, Barrier* full,
                                            Barrier* empty) const {
    // The parity of the phase before: on a fresh barrier it counts as complete, so the first loads do not wait.
    wait(empty, keys_.parity ^ 1);
    if (is_first_lane()) {
      KeyTileInfo const& tile = tile_info();
      auto const row = static_cast<std::int32_t>(tile.sequence.first_key_row) + tile.first_key;
      arrive_and_expect_tx(full, Shape::KeyTile::kBytes);
      std::byte* const to = shared_memory() + keys_.index * Shape::kKeyStageBytes + at;
      tma_load<kReads>(to, map, full, 0, row, 0, tile.head);
    }
    __syncwarp();
  }

  /// Loads Q and dO of the present block, publishes its description and advances to the next block.
  __device__ __forceinline__ void load_queries(Blocks& blocks, std::int32_t sequence_index) {
    std::uint32_t const i = queries_.index;
    std::int32_t const block = blocks.block(), first_query = block * Shape::kBlockQueries;
    KeyTileInfo const& tile = tile_info();
    bool const is_whole = blocks.is_whole() && tile.first_key + Shape::kBlockKeys <= tile.sequence.mask.num_keys;
    blocks.advance();
    std::int32_t const turn = is_deterministic() ? num_tiles_behind(first_query) * Shape::kAdders : 0;
    SequenceDqCoord const own = Shape::kTakesSequences ? dq_coord_of(first_query) : SequenceDqCoord();
    std::uint32_t const seen_parts = Shape::kTakesSequences && !Shape::kIsWide ? parts_seen_by(first_query) : 0;
    wait(&state_.queries_empty[i], queries_.parity ^ 1);
    if (is_first_lane()) {
      auto const row = static_cast<std::int32_t>(tile.sequence.first_query_row) + first_query;
      // The barrier completes when both copies have arrived and this lane has arrived too, below.
      expect_tx(&state_.queries_full[i], 2 * Shape::QueryTile::kBytes);
      tma_load<kReads>(shared_memory() + Shape::kQueriesAt + i * Shape::QueryTile::kBytes, &maps_.query,
                       &state_.queries_full[i], 0, row, 0, tile.head);
      tma_load<kReads>(shared_memory() + Shape::kGradOutAt + i * Shape::QueryTile::kBytes, &maps_.grad_out,
                       &state_.queries_full[i], 0, row, 0, tile.head);
    }
    __syncwarp();
    describe_queries(i, first_query);
    if (is_first_lane()) {
      auto const tile_number = static_cast<std::int32_t>(
          first_query_tile(tile.sequence.first_query_row, sequence_index, Shape::kBlockQueries) + block);
      state_.blocks[i] = {tile_number,      first_query,    turn,           bias_.parity, is_whole,
                          blocks.is_done(), own.has_before, own.has_behind, seen_parts};
      arrive(&state_.queries_full[i]);
    }
    queries_.advance();
    bias_.advance();
  }

  /// Computes what each query of a block sees. Afterwards the first lane, which arrives, sees all writes.
  __device__ __forceinline__ void describe_queries(std::uint32_t stage, std::int32_t first_query) {
    SequenceView const& sequence = tile_info().sequence;
    HstuSequenceMask const& mask = sequence.mask;
    for (std::int32_t i = lane(); i < Shape::kBlockQueries; i += kWarpThreads) {
      std::int32_t const query = first_query + i;
      QueryVisibility seen{0, 0, -1};  // Queries behind the sequence see nothing.
      if (query < mask.num_queries) {
        HstuKeyRange const range = mask.keys_seen_by(query);
        seen = {range.begin, min(range.end, mask.num_keys) - range.begin, mask.token_of(query)};
      }
      state_.visibility[stage][i] = seen;
    }
    __syncwarp();
  }

  [[nodiscard]] __device__ __forceinline__ KeysSeenBy keys_seen_by(std::int32_t first_query) const {
    HstuSequenceMask const& mask = tile_info().sequence.mask;
    return {mask, first_query, min(first_query + Shape::kBlockQueries, mask.num_queries)};
  }

  /// Number of tiles of keys behind this one that some query of the block sees.
  [[nodiscard]] __device__ __forceinline__ std::int32_t num_tiles_behind(std::int32_t first_query) const {
    KeysSeenBy const seen = keys_seen_by(first_query);
    std::int32_t count = 0;
    std::int32_t const behind = tile_info().first_key + Shape::kBlockKeys;
    for (std::int32_t chunk = behind; chunk < seen.size(); chunk += kWarpThreads * Shape::kBlockKeys) {
      count += __popc(tiles_seen_by(seen, chunk));
    }
    return count;
  }

  /// Bit mask of 32 tiles of keys from `first_key` on: is a key of the tile seen?
  template <std::int32_t kKeys = Shape::kBlockKeys>
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t tiles_seen_by(KeysSeenBy const& seen,
                                                                              std::int32_t first_key) {
    std::int32_t const begin = first_key + lane() * kKeys;
    bool const is_seen = begin < seen.size() && seen(begin, min(begin + kKeys, seen.size())) != BlockVisibility::kNone;
    return __ballot_sync(kAllLanes, is_seen);
  }

  /// Identifies the dQ of a block of queries. The sequence has at most 32 tiles of keys.
  [[nodiscard]] __device__ __forceinline__ SequenceDqCoord dq_coord_of(std::int32_t first_query) const {
    std::uint32_t const this_tile = 1u << tile_info().first_key / Shape::kBlockKeys;
    std::uint32_t const tiles = tiles_seen_by(keys_seen_by(first_query), 0);
    return {first_query, (tiles & (this_tile - 1)) != 0, tiles >= 2 * this_tile};
  }

  /// Bit mask of consumers: does some query of the block see one of the consumer's keys?
  [[nodiscard]] __device__ __forceinline__ std::uint32_t parts_seen_by(std::int32_t first_query) const {
    constexpr std::int32_t kPartKeys = Shape::kBlockKeys / Shape::kConsumers;
    std::uint32_t const parts = tiles_seen_by<kPartKeys>(keys_seen_by(first_query), tile_info().first_key);
    return parts & ((1u << Shape::kConsumers) - 1);
  }

  Sm90BackwardMaps const& maps_;
  Sm90BackwardParams const& params_;
  Sm90BackwardState<Shape>& state_;
  RingPosition<Shape::kKeyStages> keys_;
  RingPosition<Shape::kStages> queries_;
  RingPosition<Shape::kBiasStages> bias_;  ///< Position of the next block's bias.
};

/// Producer warp that prepares the bias of blocks of queries ahead of the consumers.
template <class Shape>
class Sm90BackwardBiasProducer {
 public:
  explicit __device__ __forceinline__ Sm90BackwardBiasProducer(Sm90BackwardParams const& params)
      : params_(params), state_(backward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    for (RingPosition<2> tile;; tile.advance()) {
      wait(&state_.tile_known[tile.index], tile.parity);
      if (state_.tiles[tile.index].is_end) return;
      prepare_tile(state_.tiles[tile.index], state_.key_times[tile.index]);
      // Arrive only after the readers of the previous tile have done so; otherwise two phases would mix.
      wait(&state_.keys_empty, tile.index ^ 1);
      if (is_first_lane()) arrive(&state_.keys_empty);
    }
  }

 private:
  __device__ __forceinline__ void prepare_tile(KeyTileInfo const& tile,
                                               BlockTimes<Shape::kBlockKeys, 16> const& key_times) {
    HstuSequenceMask const& mask = tile.sequence.mask;
    VisibleBlocks<QueriesThatSee, Shape::kBlockQueries> blocks(
        {mask, tile.first_key, min(tile.first_key + Shape::kBlockKeys, mask.num_keys)});
    while (!blocks.is_done()) {
      auto& block = state_.bias_blocks[bias_.index];
      std::int32_t const first_query = blocks.block() * Shape::kBlockQueries;
      blocks.advance();
      wait(&state_.bias_empty[bias_.index], bias_.parity ^ 1);
      if (params_.bias.has_time()) {
        block.times.fill(params_.bias.query_times + tile.sequence.first_query_row + first_query,
                         mask.num_queries - first_query, tile.base_time);
        block.time_bias.fill(backward_time_table<Shape>(params_.bias), key_times, block.times);
      }
      if (params_.bias.has_position()) {
        std::int32_t const last_token = mask.token_of(first_query) + Shape::kBlockQueries - 1;
        block.positions.fill(params_.bias, tile.first_key - last_token, params_.half_alpha);
      }
      // After this the lane that arrives sees the writes of the other lanes.
      __syncwarp();
      if (is_first_lane()) {
        block.first_query = first_query;
        block.is_last = blocks.is_done();
        arrive(&state_.bias_full[bias_.index]);
      }
      bias_.advance();
    }
  }

  Sm90BackwardParams const& params_;
  Sm90BackwardState<Shape>& state_;
  RingPosition<Shape::kBiasStages> bias_;
};

/// Warp that adds dQ of one consumer from shared memory to the workspace by bulk reductions (cp.reduce.async.bulk).
/// With `dq_semaphore`, it waits for the turn of its tile, completes the addition, then passes the turn on with release
/// semantics.
template <class Shape>
__device__ __forceinline__ void add_acc_dq(Sm90BackwardParams const& params, int warpgroup) {
  auto& state = backward_state<Shape>();
  constexpr int kThreads = 128 + kWarpThreads;
  auto const* acc_dq =
      reinterpret_cast<float const*>(shared_memory() + Shape::kAccDqAt) + warpgroup * Shape::kDqElements;
  named_barrier_arrive(kDqEmpty + warpgroup, kThreads);
  while (true) {
    named_barrier_sync(kDqFull + warpgroup, kThreads);
    AccDqCoord const coord = state.dq_coords[warpgroup];
    if (coord.part < 0) return;
    if (is_first_lane()) {
      std::int32_t* const turn = params.dq_semaphore == nullptr ? nullptr : params.dq_semaphore + coord.part;
      if (turn != nullptr) spin_until([&] { return load_acquire(turn) == coord.turn; });
      tma_reduce_add(params.acc_dq + std::int64_t{coord.part} * Shape::kDqElements, acc_dq, Shape::kDqElements * 4);
      bulk_commit_group();
      // The turn may pass only when the additions are visible, not when their source has been read.
      if (turn != nullptr) {
        bulk_wait_group<0>();
        __threadfence();
        store_release(turn, coord.turn + 1);
      } else {
        bulk_wait_group_read<0>();
      }
    }
    __syncwarp();
    named_barrier_arrive(kDqEmpty + warpgroup, kThreads);
  }
}

}  // namespace headway::kernels
