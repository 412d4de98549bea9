#pragma once

#include "hstu/cuda/hopper_forward_state.cuh"
#include "hstu/cuda/visible_blocks.cuh"

#include <cstdint>

namespace headway::kernels {

/// The warp that brings tiles.
template <class Shape>
class HopperForwardProducer {
 public:
  __device__ __forceinline__ HopperForwardProducer(HopperForwardMaps const& maps, HopperForwardParams const& params)
      : maps_(maps), params_(params), state_(forward_state<Shape>()) {}

  __device__ __forceinline__ void run() {
    TileCounter const counter{params_.tiles_taken, static_cast<std::int32_t>(gridDim.x)};
    HstuSequences const& sequences = params_.sequences;
    TileSchedule schedule(sequences.query_offsets, sequences.num_sequences, params_.num_heads, sequences.max_queries,
                          Shape::kBlockQueries, params_.section_sequences, BlockOrder::kLastFirst);
    SequenceTile tile;
    std::int32_t next = 0;
    for (auto number = static_cast<std::int32_t>(blockIdx.x); schedule.find(number, tile); number = next) {
      next = counter.next(number);
      bring_tile(tile);
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
    if (is_first_lane()) {
      expect(&state_.key_full[i], Shape::KeyTile::kBytes);
      load_tile(shared_memory() + Shape::kKeysAt + i * Shape::KeyTile::kBytes, &maps_.key, &state_.key_full[i], 0,
                static_cast<std::int32_t>(tile.sequence.first_key_row) + first_key, 0, tile.head);
    }
    __syncwarp();
    describe_keys(tile, i, first_key);
    if (is_first_lane()) {
      state_.blocks[i] = {first_key, is_whole, blocks.is_done()};
      arrive(&state_.key_full[i]);
    }
    key_.advance();
    return block;
  }

  /// What the bias needs. The first lane, which then arrives, sees what the others wrote.
  __device__ __forceinline__ void describe_keys(QueryTileInfo const& tile, std::uint32_t stage,
                                                std::int32_t first_key) {
    if constexpr (Shape::kHasBias) {
      HstuSequenceMask const& mask = tile.sequence.mask;
      if (params_.bias.has_time()) {
        state_.key_times[stage].fill(params_.bias.key_times + tile.sequence.first_key_row + first_key,
                                     mask.num_keys - first_key, tile.base_time);
      }
      if (params_.bias.has_position()) {
        std::int32_t const last_token = mask.token_of(tile.first_query) + Shape::kBlockQueries - 1;
        state_.positions[stage].fill(params_.bias, first_key - last_token, params_.half_alpha);
      }
    }
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

}  // namespace headway::kernels
