#pragma once

#include "hstu/cuda/hopper_backward_params.hpp"
#include "hstu/cuda/hopper_forward_plan.hpp"

#include <cstdint>

namespace headway::kernels {

/// Where parts of the workspace of a backward pass are, in bytes.
struct HopperBackwardWorkspace {
  static constexpr std::int32_t kBlockQueries = 64;
  std::int64_t num_tiles = 0;  ///< Of queries, those left out included.
  std::int64_t turns_at = 0;   ///< Behind the counter of tiles; all of it begins as 0.
  std::int64_t query_sums_at = 0;
  std::int64_t size_bytes = 0;

  explicit HopperBackwardWorkspace(HstuForwardArgs const& args) {
    constexpr std::int64_t kUnit = 256;
    num_tiles = args.sequences.num_queries / kBlockQueries + args.sequences.num_sequences;
    std::int64_t const num_parts = num_tiles * args.num_heads * 2;
    bool const takes_turns = args.options.determinism == Determinism::kDeterministic;
    turns_at = kUnit;
    query_sums_at = turns_at + (takes_turns ? (num_parts * 4 + kUnit - 1) / kUnit * kUnit : 0);
    size_bytes = query_sums_at + num_tiles * args.num_heads * kBlockQueries * args.dim * 4;
  }
};

/// @param workspace of zeros
[[nodiscard]] inline HopperBackwardParams hopper_backward_params(HstuBackwardArgs const& args, void* workspace) {
  HstuForwardArgs const& forward = args.forward;
  HopperBackwardWorkspace const places(forward);
  auto* const begin = static_cast<char*>(workspace);
  bool const takes_turns = forward.options.determinism == Determinism::kDeterministic;
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
          .turns = takes_turns ? reinterpret_cast<std::int32_t*>(begin + places.turns_at) : nullptr,
          .section_sequences = sequences_in_cache(forward),
          .tiles_taken = reinterpret_cast<std::int32_t*>(begin)};
}

}  // namespace headway::kernels
