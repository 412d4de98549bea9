#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Unit of work of a block of threads: a tile of keys; a head of a sequence with all its tiles; or a head of a sequence
/// that has one tile. In the latter two cases, no other block adds to the sequence's dQ.
enum class BackwardWork : std::uint8_t { kTiles, kSequences, kSequencesOfATile };

/// Kernel parameters besides the TMA descriptors. Pointers are to device memory.
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

  /// float32 dQ. kTiles: by block of queries (see first_query_tile()), head, and fragment order. Otherwise: by block of
  /// threads, block of queries of the sequence, and fragment order.
  float* query_sums = nullptr;
  std::int32_t most_query_blocks = 0;  ///< Most blocks of queries in one sequence.
  /// Number of additions so far to each part of dQ (block of queries, head, half of the columns); null if tiles may add
  /// in any order.
  std::int32_t* turns = nullptr;
  std::int32_t section_sequences = 1;   ///< See TileSchedule.
  std::int32_t* tiles_taken = nullptr;  ///< See TileCounter.
};

/// First number of a sequence's blocks of queries, computed from its index and first row alone. Some numbers stay
/// unused: each sequence gets one more than the whole blocks among its rows.
///
/// Example: blocks of 64; sequence 0 has 100 rows, sequence 1 begins at row 100. They begin at 0 and at 100 / 64 + 1 =
/// 2.
[[nodiscard]] HEADWAY_HOST_DEVICE inline std::int64_t first_query_tile(std::int64_t first_query_row,
                                                                       std::int64_t sequence,
                                                                       std::int32_t block_queries) {
  return first_query_row / block_queries + sequence;
}

}  // namespace headway::kernels
