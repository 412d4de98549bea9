// SPDX-License-Identifier: Apache-2.0

// One sequence of a batch, as the kernels on the CPU use it.

#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// One sequence of a call, on the CPU: its first rows and its mask.
///
/// A run of queries (HstuSequences::query_runs) is a sequence too, whose queries are not the last tokens. Its mask
/// counts the tokens behind the run as queries as well, so that it finds the tokens of those that are there.
struct Sequence {
  std::int64_t index = 0, first_query = 0, first_key = 0;
  HstuSequenceMask mask;
  std::int64_t tokens_behind = 0;  ///< Queries of the mask that have no rows.

  [[nodiscard]] std::int64_t num_queries() const { return mask.num_queries - tokens_behind; }
  [[nodiscard]] std::int64_t num_keys() const { return mask.num_keys; }
};

/// Sequence b of arguments that have been checked.
[[nodiscard]] inline Sequence sequence_of(HstuForwardArgs const& args, std::int64_t b) {
  HstuSequences const& all = args.sequences;
  return {.index = b,
          .first_query = all.query_offsets[b],
          .first_key = all.key_offsets[b],
          .mask = {.options = args.options.mask,
                   .num_queries = static_cast<std::int32_t>(all.query_offsets[b + 1] - all.query_offsets[b]),
                   .num_keys = static_cast<std::int32_t>(all.key_offsets[b + 1] - all.key_offsets[b]),
                   .num_contextual = all.num_contextual == nullptr ? 0 : all.num_contextual[b],
                   .num_targets = all.num_targets == nullptr ? 0 : all.num_targets[b]}};
}

/// Calls visit(run) for the runs of a sequence's queries that are not empty, in order. Without runs it is the sequence.
template <class Visit>
void for_each_run(HstuForwardArgs const& args, Sequence const& sequence, Visit visit) {
  if (args.sequences.query_runs == nullptr) return visit(sequence);
  std::int64_t first_query = sequence.first_query;
  for (std::int64_t i = 0; i < kMaxQueryRuns; ++i) {
    HstuTokenRun const run = args.sequences.query_runs[sequence.index * kMaxQueryRuns + i];
    if (run.rows == 0) continue;
    Sequence part = sequence;
    part.first_query = first_query;
    part.mask.num_queries = part.mask.num_keys - run.first;
    part.tokens_behind = part.mask.num_queries - run.rows;
    visit(part);
    first_query += run.rows;
  }
}

/// Factor of the sequence's attention weights.
/// A sequence without keys has no queries either, so the division by zero is never used.
[[nodiscard]] inline double scale_of(HstuAttentionOptions const& options, Sequence const& sequence) {
  bool const by_keys = options.length_scaling == LengthScaling::kByNumKeys;
  return by_keys ? options.scale / static_cast<double>(sequence.num_keys()) : options.scale;
}

}  // namespace headway::kernels::hstu
