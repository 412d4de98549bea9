// SPDX-License-Identifier: Apache-2.0
#pragma once

// Producers of the forward pass on sm_90a: warps of the first warpgroup, with few registers.
//
// Idea: every role walks through the same tiles and blocks, so positions in rings are never communicated.
//   warp 0  Sm90ForwardQueryProducer: takes tiles from the schedule, publishes QueryTileInfo, loads Q
//   warp 1  Sm90ForwardKeyProducer: publishes KeyBlockInfo, loads K and V
//   warps 2, 3  Sm90ForwardBiasProducer: fill ForwardBiasBlock, each for every other block
// A description is published (tile_known) before the tile's queries have arrived, so other warps begin early.
//
// Example: a tile that sees blocks 0, 1 and 2. Warp 1 loads K0, K1, V0, K2, V1, V2: a consumer needs K one block before
// V. Warp 2 prepares the bias of blocks 0 and 2, warp 3 that of block 1; with the next tile's first block, warp 3
// continues.
//
// Invariants: one lane arrives at a barrier, after __syncwarp() has made the other lanes' writes visible to it. The end
// is a tile with is_end. With a bias, a tile of queries without visible keys would hang its consumers, so the bias
// producer traps.

#include "hstu/cuda/sm90/forward/state.cuh"
#include "hstu/cuda/tile/visible_blocks.cuh"

#include <cstdint>

namespace headway::kernels {

/// Producer warp that finds tiles of queries and loads them, one tile ahead if there is a free stage.
template <class Shape>
class Sm90ForwardQueryProducer {
 public:
  __device__ __forceinline__ Sm90ForwardQueryProducer(Sm90ForwardMaps const& maps, Sm90ForwardParams const& params)
      : maps_(maps), params_(params), state_(forward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    TileCounter const counter{params_.tiles_taken, static_cast<std::int32_t>(gridDim.x)};
    HstuSequences const& sequences = params_.sequences;
    TileSchedule schedule(sequences.query_offsets, sequences.num_sequences, params_.num_heads, sequences.max_queries,
                          Shape::kBlockQueries, params_.section_sequences, BlockOrder::kLastFirst);
    SequenceTile tile;
    std::int32_t next = 0;
    for (auto tile_index = static_cast<std::int32_t>(blockIdx.x); schedule.find(tile_index, tile); tile_index = next) {
      next = counter.next(tile_index);
      load_queries(tile);
    }
    wait(&state_.tile_empty[tile_.index], tile_.parity ^ 1);
    if (is_first_lane()) {
      state_.tiles[tile_.index].is_end = true;
      arrive(&state_.tile_known[tile_.index]);
    }
    wait(&state_.query_empty[query_.index], query_.parity ^ 1);
    if (is_first_lane()) arrive(&state_.query_full[query_.index]);
  }

 private:
  /// Publishes the tile's description and times, then loads its queries by TMA.
  __device__ __forceinline__ void load_queries(SequenceTile const& tile) {
    SequenceView const sequence(params_.sequences, params_.mask, tile.sequence);
    std::int32_t const first_query = tile.block * Shape::kBlockQueries;
    std::int64_t const first_row = sequence.first_query_row + first_query;
    wait(&state_.tile_empty[tile_.index], tile_.parity ^ 1);
    std::int64_t base_time = 0;
    if constexpr (Shape::kHasBias) {
      if (params_.bias.has_time()) {
        std::int64_t const* const times = params_.bias.query_times + first_row;
        base_time = __ldg(times) - kTimesBeforeBase;
        state_.query_times[tile_.index].fill(times, sequence.mask.num_queries - first_query, base_time);
      }
    }
    // After this the lane that arrives sees the writes of the other lanes.
    __syncwarp();
    if (is_first_lane()) {
      state_.tiles[tile_.index] = {sequence, tile.head, first_query, base_time, false};
      arrive(&state_.tile_known[tile_.index]);
    }
    std::uint32_t const i = query_.index;
    wait(&state_.query_empty[i], query_.parity ^ 1);
    if (is_first_lane()) {
      arrive_and_expect_tx(&state_.query_full[i], Shape::QueryTile::kBytes);
      tma_load<TileReads::kOnce>(shared_memory() + i * Shape::QueryTile::kBytes, &maps_.query, &state_.query_full[i], 0,
                                 static_cast<std::int32_t>(first_row), 0, tile.head);
    }
    __syncwarp();
    tile_.advance();
    query_.advance();
  }

  Sm90ForwardMaps const& maps_;
  Sm90ForwardParams const& params_;
  Sm90ForwardState<Shape>& state_;
  RingPosition<Shape::kTileStages> tile_;
  RingPosition<Shape::kQueryStages> query_;
};

/// Loop over tiles of the other producer warps. All lanes of a warp call it.
/// @param load_keys callback for a tile and the blocks of keys that it sees
template <class Shape, class LoadKeys>
__device__ __forceinline__ void for_each_forward_tile(LoadKeys load_keys) {
  auto& state = forward_state<Shape>();
  for (RingPosition<Shape::kTileStages> position;; position.advance()) {
    wait(&state.tile_known[position.index], position.parity);
    // A reference into shared memory, as these warps have few registers.
    QueryTileInfo const& tile = state.tiles[position.index];
    if (tile.is_end) return;
    HstuSequenceMask const& mask = tile.sequence.mask;
    load_keys(tile, VisibleBlocks<KeysSeenBy, Shape::kBlockKeys>(
                        {mask, tile.first_query, min(tile.first_query + Shape::kBlockQueries, mask.num_queries)}));
    release(&state.tile_empty[position.index]);
  }
}

/// Producer warp that loads keys and values by TMA.
template <class Shape>
class Sm90ForwardKeyProducer {
 public:
  explicit __device__ __forceinline__ Sm90ForwardKeyProducer(Sm90ForwardMaps const& maps)
      : maps_(maps), state_(forward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    for_each_forward_tile<Shape>([this](QueryTileInfo const& tile, Blocks blocks) {
      // Consumers need keys one step before values, so keys are loaded one block ahead.
      std::int32_t present = load_keys(tile, blocks);
      while (!blocks.is_done()) {
        std::int32_t const next = load_keys(tile, blocks);
        load_values(tile, present);
        present = next;
      }
      load_values(tile, present);
    });
  }

 private:
  using Blocks = VisibleBlocks<KeysSeenBy, Shape::kBlockKeys>;

  /// Loads the keys of the present block and advances to the next. @returns the first key of the block
  __device__ __forceinline__ std::int32_t load_keys(QueryTileInfo const& tile, Blocks& blocks) {
    std::uint32_t const i = key_.index;
    std::int32_t const first_key = blocks.block() * Shape::kBlockKeys;
    bool const is_whole = blocks.is_whole();
    blocks.advance();
    wait(&state_.key_empty[i], key_.parity ^ 1);
    if (is_first_lane()) {
      state_.blocks[i] = {first_key, is_whole, blocks.is_done()};
      load(&maps_.key, Shape::kKeysAt, i, &state_.key_full[i], tile, first_key);
    }
    key_.advance();
    return first_key;
  }

  /// Loads the values of a block.
  __device__ __forceinline__ void load_values(QueryTileInfo const& tile, std::int32_t first_key) {
    std::uint32_t const i = value_.index;
    wait(&state_.value_empty[i], value_.parity ^ 1);
    if (is_first_lane()) {
      state_.num_values[i] = tile.sequence.mask.num_keys - first_key;
      load(&maps_.value, Shape::kValuesAt, i, &state_.value_full[i], tile, first_key);
    }
    value_.advance();
  }

  /// Loads a tile into a stage; the barrier counts its bytes.
  static __device__ __forceinline__ void load(TensorMap const* map, std::uint32_t at, std::uint32_t stage,
                                              Barrier* full, QueryTileInfo const& tile, std::int32_t first_key) {
    arrive_and_expect_tx(full, Shape::KeyTile::kBytes);
    tma_load(shared_memory() + at + stage * Shape::KeyTile::kBytes, map, full, 0,
             static_cast<std::int32_t>(tile.sequence.first_key_row) + first_key, 0, tile.head);
  }

  Sm90ForwardMaps const& maps_;
  Sm90ForwardState<Shape>& state_;
  RingPosition<Shape::kKeyStages> key_, value_;
};

/// One of two producer warps that prepare the bias of blocks of keys, each for every other block.
template <class Shape>
class Sm90ForwardBiasProducer {
 public:
  /// @param warp 0 or 1; warp 0 prepares the very first block
  __device__ __forceinline__ Sm90ForwardBiasProducer(Sm90ForwardParams const& params, int warp)
      : params_(params), state_(forward_state<Shape>()), is_on_(warp == 0) {}

  __device__ __forceinline__ void run() {
    for_each_forward_tile<Shape>([&](QueryTileInfo const& tile, VisibleBlocks<KeysSeenBy, Shape::kBlockKeys> blocks) {
      // A query without keys is not allowed: its consumers would wait for a bias forever.
      if (blocks.is_done()) __trap();
      while (!blocks.is_done()) {
        std::int32_t const first_key = blocks.block() * Shape::kBlockKeys;
        blocks.advance();
        if (is_on_) {
          wait(&state_.bias_empty[bias_.index], bias_.parity ^ 1);
          ForwardBiasBlock<Shape>& block = state_.bias_blocks[bias_.index];
          prepare(block, tile, first_key);
          if (is_first_lane()) {
            block.first_key = first_key;
            block.is_last = blocks.is_done();
            arrive(&state_.bias_full[bias_.index]);
          }
        }
        is_on_ = !is_on_;
        bias_.advance();
      }
    });
  }

 private:
  /// Fills the times and position weights of a block. Afterwards the first lane, which arrives, sees all writes.
  __device__ __forceinline__ void prepare(ForwardBiasBlock<Shape>& block, QueryTileInfo const& tile,
                                          std::int32_t first_key) const {
    HstuSequenceMask const& mask = tile.sequence.mask;
    if (params_.bias.has_time()) {
      block.times.fill(params_.bias.key_times + tile.sequence.first_key_row + first_key, mask.num_keys - first_key,
                       tile.base_time);
    }
    if (params_.bias.has_position()) {
      std::int32_t const last_token = mask.token_of(tile.first_query) + Shape::kBlockQueries - 1;
      block.positions.fill(params_.bias, first_key - last_token, params_.half_alpha);
    }
  }

  Sm90ForwardParams const& params_;
  Sm90ForwardState<Shape>& state_;
  bool is_on_;  ///< Is the next block this warp's?
  RingPosition<Shape::kBiasStages> bias_;
};

}  // namespace headway::kernels
