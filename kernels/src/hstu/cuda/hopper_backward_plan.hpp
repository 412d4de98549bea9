#pragma once

#include "hstu/cuda/hopper_backward_params.hpp"
#include "hstu/cuda/hopper_forward_plan.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Rows of a block of queries.
inline constexpr std::int32_t kBackwardBlockQueries = 64;

/// Rows of a tile of keys.
[[nodiscard]] constexpr std::int32_t backward_block_keys(std::int32_t dim) { return dim == 256 ? 64 : 128; }

/// Are there kernels in which a block of threads takes a whole head of a sequence? A consumer then owns half of the
/// columns of dQ, and for dim 32 its 16 columns are too few for store_rows().
[[nodiscard]] constexpr bool takes_sequences(std::int32_t dim) { return dim >= 64; }

[[nodiscard]] inline std::int64_t num_heads_of_sequences(HstuForwardArgs const& args) {
  return args.sequences.num_sequences * args.num_heads;
}

/// Chooses the unit of work. A block of threads takes whole sequences under two conditions. They are short, so that the
/// L2 cache holds most of dQ of all blocks (17 MB on an H100 or H200 are not in shared memory). And they are enough to
/// keep the device busy: with one per multiprocessor in each round, the rounds are at least three quarters full.
[[nodiscard]] inline BackwardWork backward_work(HstuForwardArgs const& args, std::int32_t num_multiprocessors) {
  constexpr std::int64_t kMostKeys = 512, kMostElements = 512 * 128;
  HstuSequences const& sequences = args.sequences;
  std::int64_t const most_keys = std::min(kMostKeys, kMostElements / args.dim);
  if (!takes_sequences(args.dim) || sequences.max_keys > most_keys) return BackwardWork::kTiles;
  if (sequences.max_keys <= backward_block_keys(args.dim)) return BackwardWork::kSequencesOfATile;
  std::int64_t const pieces = num_heads_of_sequences(args);
  std::int64_t const rounds = (pieces + num_multiprocessors - 1) / num_multiprocessors;
  return 4 * pieces >= 3 * rounds * num_multiprocessors ? BackwardWork::kSequences : BackwardWork::kTiles;
}

/// Layout of the workspace of a backward pass, in bytes: counter of tiles, turns, float32 dQ.
struct HopperBackwardWorkspace {
  std::int64_t num_tiles = 0;  ///< Blocks of queries, unused numbers included.
  std::int64_t turns_at = 0;   ///< Behind the counter of tiles.
  std::int64_t query_sums_at = 0;
  std::int64_t cleared_bytes = 0;  ///< Bytes from the beginning that must be 0 before the kernel.
  std::int64_t size_bytes = 0;
  bool takes_turns = false;
  bool counts_pieces = false;          ///< Does some block of threads take more than one piece of work?
  std::int32_t most_query_blocks = 0;  ///< Most blocks of queries in one sequence.

  HopperBackwardWorkspace(HstuForwardArgs const& args, BackwardWork work, std::int32_t num_multiprocessors) {
    constexpr std::int64_t kUnit = 256;
    HstuSequences const& sequences = args.sequences;
    num_tiles = sequences.num_queries / kBackwardBlockQueries + sequences.num_sequences;
    std::int64_t const num_parts = num_tiles * args.num_heads * 2;
    std::int64_t const block_bytes = std::int64_t{kBackwardBlockQueries} * args.dim * 4;
    bool const takes_tiles = work == BackwardWork::kTiles;
    takes_turns = takes_tiles && args.options.determinism == Determinism::kDeterministic;
    most_query_blocks =
        static_cast<std::int32_t>((sequences.max_queries + kBackwardBlockQueries - 1) / kBackwardBlockQueries);
    turns_at = kUnit;
    query_sums_at = turns_at + (takes_turns ? (num_parts * 4 + kUnit - 1) / kUnit * kUnit : 0);
    if (takes_tiles) {
      counts_pieces = true;
      cleared_bytes = size_bytes = query_sums_at + num_tiles * args.num_heads * block_bytes;
    } else {
      bool const has_sums = sequences.max_keys > backward_block_keys(args.dim);
      counts_pieces = num_heads_of_sequences(args) > num_multiprocessors;
      cleared_bytes = counts_pieces ? query_sums_at : 0;
      size_bytes = query_sums_at + (has_sums ? num_multiprocessors * most_query_blocks * block_bytes : 0);
    }
  }
};

/// @param workspace memory laid out and cleared as `places` says
[[nodiscard]] inline HopperBackwardParams hopper_backward_params(HstuBackwardArgs const& args,
                                                                 HopperBackwardWorkspace const& places,
                                                                 void* workspace) {
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
          .query_sums = reinterpret_cast<float*>(begin + places.query_sums_at),
          .most_query_blocks = places.most_query_blocks,
          .turns = places.takes_turns ? reinterpret_cast<std::int32_t*>(begin + places.turns_at) : nullptr,
          .section_sequences = sequences_in_cache(forward),
          .tiles_taken = places.counts_pieces ? reinterpret_cast<std::int32_t*>(begin) : nullptr};
}

}  // namespace headway::kernels
