#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// What a block of threads takes at a time: a tile of keys, or a head of a sequence with all its tiles of keys, or with
/// the only one. With the latter two no other block adds to the gradients of its queries.
enum class BackwardWork : std::uint8_t { kTiles, kSequences, kSequencesOfATile };

/// What the kernels of the backward pass are given beside maps.
struct HopperBackwardParams {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float half_alpha = 0.5F, scale = 1;
  std::int32_t num_heads = 0;
  JaggedHeads<std::uint16_t*> grad_query, grad_key, grad_value;
  float* grad_position_weights = nullptr;
  float* grad_time_weights = nullptr;

  /// Sums for the gradients of queries, by tile (see first_query_tile()), head, and place in a fragment; where blocks
  /// of threads take sequences, by block of threads, block of queries and place.
  float* query_sums = nullptr;
  std::int32_t most_query_blocks = 0;  ///< Of a sequence.
  /// How many have added to the sums of a tile, head and half of the columns; null if they may add in any order.
  std::int32_t* turns = nullptr;
  std::int32_t section_sequences = 1;   ///< See TileSchedule.
  std::int32_t* tiles_taken = nullptr;  ///< See TileCounter.
};

/// Tiles of queries have numbers that their sequence's index and first row alone give, so that some are left out: a
/// sequence has room for its rows as there is one tile more than whole ones in the rows before the next sequence.
[[nodiscard]] HEADWAY_HOST_DEVICE inline std::int64_t first_query_tile(std::int64_t first_query_row,
                                                                       std::int64_t sequence,
                                                                       std::int32_t block_queries) {
  return first_query_row / block_queries + sequence;
}

}  // namespace headway::kernels
