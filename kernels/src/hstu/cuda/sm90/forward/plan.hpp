// SPDX-License-Identifier: Apache-2.0

// Parameters of the forward kernel on sm_90a, and bounds that the host needs for the grid.
//
// The host knows the number of rows and the longest sequence, not the lengths. Example: 1,000 rows, 4 sequences of at
// most 400, tiles of 128: at most 4 tiles each make 16; 1,000 / 128 + 4 = 11 is the better bound.

#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Kernel parameters besides the TMA descriptors. Pointers are to device memory.
struct Sm90ForwardParams {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float half_alpha = 0.5F;  ///< alpha / 2: SiLU(x) = h + h tanh(h) with h = x / 2.
  float scale = 1;
  std::int32_t num_heads = 0;
  JaggedHeads<std::uint16_t*> out;
  std::int32_t section_sequences = 1;   ///< Sequences whose keys and values fit the L2 cache (TileSchedule).
  std::int32_t* tiles_taken = nullptr;  ///< Counter of tiles that blocks have taken; null: static order (TileCounter).
};

/// Upper bound on the number of tiles of `block_rows` rows, over all sequences and heads. The host knows no lengths.
[[nodiscard]] inline std::int64_t max_tiles(HstuForwardArgs const& args, std::int64_t num_rows, std::int64_t max_rows,
                                            std::int32_t block_rows) {
  std::int64_t const num_sequences = args.sequences.num_sequences;
  std::int64_t const per_sequence = (max_rows + block_rows - 1) / block_rows;
  return std::min(per_sequence * num_sequences, num_rows / block_rows + num_sequences) * args.num_heads;
}

[[nodiscard]] inline std::int64_t max_query_tiles(HstuForwardArgs const& args, std::int32_t block_queries) {
  return max_tiles(args, args.sequences.num_queries, args.sequences.max_queries, block_queries);
}

[[nodiscard]] inline std::int64_t max_key_tiles(HstuForwardArgs const& args, std::int32_t block_keys) {
  return max_tiles(args, args.sequences.num_keys, args.sequences.max_keys, block_keys);
}

/// Number of sequences whose keys and values fill a third of the L2 cache of an H100 or H200 (50 MB). Both halves of
/// the cache may hold a copy of a line, and queries pass through it.
[[nodiscard]] inline std::int32_t sequences_in_cache(HstuForwardArgs const& args) {
  constexpr std::int64_t kCacheBytes = 16 << 20;
  std::int64_t const bytes =
      std::max<std::int64_t>(args.sequences.num_keys * args.num_heads * (args.dim + args.value_dim) * 2, 1);
  std::int64_t const fitting = kCacheBytes * args.sequences.num_sequences / bytes;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(fitting, 1, args.sequences.num_sequences));
}

/// @param tiles_taken counter that is 0, or null if each block of threads has at most one tile
[[nodiscard]] inline Sm90ForwardParams sm90_forward_params(HstuForwardArgs const& args, std::int32_t* tiles_taken) {
  return {.sequences = args.sequences,
          .mask = args.options.mask,
          .bias = args.bias,
          .length_scaling = args.options.length_scaling,
          .half_alpha = static_cast<float>(args.options.alpha / 2),
          .scale = static_cast<float>(args.options.scale),
          .num_heads = args.num_heads,
          .out = {static_cast<std::uint16_t*>(args.out.data), args.out.token_stride, args.out.head_stride},
          .section_sequences = sequences_in_cache(args),
          .tiles_taken = tiles_taken};
}

}  // namespace headway::kernels
