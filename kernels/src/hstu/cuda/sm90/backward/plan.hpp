// SPDX-License-Identifier: Apache-2.0

// Parameters, unit of work and workspace of the backward kernel on sm_90a.
//
// dQ is a sum over tiles of keys. For long sequences many blocks of threads add to it, in float32 in the workspace.
// For short ones a block of threads takes a whole head of a sequence and keeps dQ itself: no atomics, no second
// kernel.
//
// Example: 132 multiprocessors, dim 64, sequences of up to 256 keys. 400 heads of sequences take 4 rounds of 132 =
// 528; 400 / 528 = 0.76 is above three quarters: kSequences. With 140 heads, 2 rounds would be nearly half empty:
// kTiles.

#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "hstu/cuda/sm90/forward/plan.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Unit of work of a block of threads: a tile of keys; a head of a sequence with all its tiles; or a head of a sequence
/// that has one tile. In the latter two cases, no other block adds to the sequence's dQ.
enum class BackwardWork : std::uint8_t { kTiles, kSequences, kSequencesOfATile };

/// Kernel parameters besides the TMA descriptors. Pointers are to device memory.
struct Sm90BackwardParams {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float half_alpha = 0.5F;  ///< alpha / 2: SiLU(x) = h + h tanh(h) with h = x / 2.
  float scale = 1;
  std::int32_t num_heads = 0;
  JaggedHeads<std::uint16_t*> grad_query, grad_key, grad_value;
  float* grad_position_weights = nullptr;
  float* grad_time_weights = nullptr;

  /// float32 dQ. kTiles: by block of queries (see first_query_tile()), head, and fragment order, in which the threads
  /// of a consumer hold their accumulators. Otherwise: by block of threads, block of queries of the sequence, and
  /// fragment order.
  float* acc_dq = nullptr;
  std::int32_t max_query_blocks = 0;  ///< Most blocks of queries in one sequence.
  /// Number of additions so far to each part of dQ (block of queries, head, half of the columns); null if tiles may add
  /// in any order.
  std::int32_t* dq_semaphore = nullptr;
  std::int32_t section_sequences = 1;   ///< Sequences whose keys and values fit the L2 cache (TileSchedule).
  std::int32_t* tiles_taken = nullptr;  ///< Counter of tiles that blocks have taken; null: static order (TileCounter).
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

/// Rows of a block of queries.
inline constexpr std::int32_t kBackwardBlockQueries = 64;

/// Rows of a tile of keys.
[[nodiscard]] constexpr std::int32_t backward_block_keys(std::int32_t dim) { return dim == 256 ? 64 : 128; }

/// Are there kernels in which a block of threads takes a whole head of a sequence? A consumer warpgroup then owns half
/// of the columns of dQ, and for dim 32 its 16 columns are too few for store_rows().
[[nodiscard]] constexpr bool takes_sequences(std::int32_t dim) { return dim >= 64; }

[[nodiscard]] inline std::int64_t num_heads_of_sequences(HstuForwardArgs const& args) {
  return args.sequences.num_sequences * args.num_heads;
}

/// Chooses the unit of work. A block of threads takes whole sequences under two conditions. They are short, so that the
/// L2 cache holds most of dQ of all blocks (17 MB on an H100 or H200 are not in shared memory). And they are enough to
/// keep the device busy: with one per multiprocessor in each round, the rounds are at least three quarters full.
[[nodiscard]] inline BackwardWork backward_work(HstuForwardArgs const& args, std::int32_t num_multiprocessors) {
  constexpr std::int64_t kMaxKeys = 512, kMaxElements = 512 * 128;
  HstuSequences const& sequences = args.sequences;
  std::int64_t const max_keys = std::min(kMaxKeys, kMaxElements / args.dim);
  if (!takes_sequences(args.dim) || sequences.max_keys > max_keys) return BackwardWork::kTiles;
  if (sequences.max_keys <= backward_block_keys(args.dim)) return BackwardWork::kSequencesOfATile;
  std::int64_t const pieces = num_heads_of_sequences(args);
  std::int64_t const rounds = (pieces + num_multiprocessors - 1) / num_multiprocessors;
  return 4 * pieces >= 3 * rounds * num_multiprocessors ? BackwardWork::kSequences : BackwardWork::kTiles;
}

/// Layout of the workspace of a backward pass, in bytes: counter of tiles, semaphores of dQ, float32 dQ.
struct Sm90BackwardWorkspace {
  std::int64_t num_tiles = 0;        ///< Blocks of queries, unused numbers included.
  std::int64_t dq_semaphore_at = 0;  ///< Behind the counter of tiles.
  std::int64_t acc_dq_at = 0;
  std::int64_t cleared_bytes = 0;  ///< Bytes from the beginning that must be 0 before the kernel.
  std::int64_t size_bytes = 0;
  bool is_deterministic = false;
  bool counts_pieces = false;         ///< Does some block of threads take more than one BackwardWork unit?
  std::int32_t max_query_blocks = 0;  ///< Most blocks of queries in one sequence.

  Sm90BackwardWorkspace(HstuForwardArgs const& args, BackwardWork work, std::int32_t num_multiprocessors) {
    constexpr std::int64_t kUnit = 256;
    HstuSequences const& sequences = args.sequences;
    num_tiles = sequences.num_queries / kBackwardBlockQueries + sequences.num_sequences;
    // Each block of queries and head may have two parts, when consumers own half of the columns each.
    std::int64_t const num_parts = num_tiles * args.num_heads * 2;
    std::int64_t const block_bytes = std::int64_t{kBackwardBlockQueries} * args.dim * 4;
    bool const takes_tiles = work == BackwardWork::kTiles;
    is_deterministic = takes_tiles && args.options.determinism == Determinism::kDeterministic;
    max_query_blocks =
        static_cast<std::int32_t>((sequences.max_queries + kBackwardBlockQueries - 1) / kBackwardBlockQueries);
    dq_semaphore_at = kUnit;
    acc_dq_at = dq_semaphore_at + (is_deterministic ? (num_parts * 4 + kUnit - 1) / kUnit * kUnit : 0);
    if (takes_tiles) {
      counts_pieces = true;
      cleared_bytes = size_bytes = acc_dq_at + num_tiles * args.num_heads * block_bytes;
    } else {
      bool const has_acc_dq = sequences.max_keys > backward_block_keys(args.dim);
      counts_pieces = num_heads_of_sequences(args) > num_multiprocessors;
      // dQ needs no clearing here: the first tile of keys that a block of queries sees begins with zeros in registers.
      cleared_bytes = counts_pieces ? acc_dq_at : 0;
      size_bytes = acc_dq_at + (has_acc_dq ? num_multiprocessors * max_query_blocks * block_bytes : 0);
    }
  }
};

/// @param workspace memory laid out and cleared as `layout` says
[[nodiscard]] inline Sm90BackwardParams sm90_backward_params(HstuBackwardArgs const& args,
                                                             Sm90BackwardWorkspace const& layout, void* workspace) {
  HstuForwardArgs const& forward = args.forward;
  auto* const begin = static_cast<char*>(workspace);
  auto const rows = [](JaggedHeads<void*> const& heads) {
    return JaggedHeads<std::uint16_t*>{static_cast<std::uint16_t*>(heads.data), heads.token_stride, heads.head_stride};
  };
  return {.sequences = forward.sequences,
          .mask = forward.options.mask,
          .bias = forward.bias,
          .length_scaling = forward.options.length_scaling,
          .half_alpha = static_cast<float>(forward.options.alpha / 2),
          .scale = static_cast<float>(forward.options.scale),
          .num_heads = forward.num_heads,
          .grad_query = rows(args.grad_query),
          .grad_key = rows(args.grad_key),
          .grad_value = rows(args.grad_value),
          .grad_position_weights = static_cast<float*>(args.grad_position_weights),
          .grad_time_weights = static_cast<float*>(args.grad_time_weights),
          .acc_dq = reinterpret_cast<float*>(begin + layout.acc_dq_at),
          .max_query_blocks = layout.max_query_blocks,
          .dq_semaphore =
              layout.is_deterministic ? reinterpret_cast<std::int32_t*>(begin + layout.dq_semaphore_at) : nullptr,
          .section_sequences = sequences_in_cache(forward),
          .tiles_taken = layout.counts_pieces ? reinterpret_cast<std::int32_t*>(begin) : nullptr};
}

}  // namespace headway::kernels
