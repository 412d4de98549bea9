// SPDX-License-Identifier: Apache-2.0

// Forward pass on the CPU: shares groups of queries among threads.
//
// Example: sequences of 300 and 100 queries, 2 heads. They have 2 and 1 groups of up to 256 queries, so
// groups_before() is 0 2 3 and there are 6 items. Items 0 and 1 are the groups of head 0 of the first sequence, the
// last one first. Each run of a sequence's queries counts as a sequence here.

#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/for_each_item.hpp"
#include "hstu/cpu/forward_group.hpp"
#include "hstu/cpu/passes.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::kernels::hstu {
namespace {

std::int64_t num_groups(std::int64_t queries) { return (queries + kGroupSize - 1) / kGroupSize; }

/// The runs of queries of all sequences, in order; empty if the queries of each are its last tokens.
std::vector<Sequence> runs_of(HstuForwardArgs const& args) {
  std::vector<Sequence> runs;
  if (args.sequences.query_runs == nullptr) return runs;
  runs.reserve(static_cast<std::size_t>(args.sequences.num_sequences));
  for (std::int64_t b = 0; b < args.sequences.num_sequences; ++b)
    for_each_run(args, sequence_of(args, b), [&](Sequence const& run) { runs.push_back(run); });
  return runs;
}

/// Exclusive prefix sum of the number of groups of queries in each run or sequence; the last element is the total.
std::vector<std::int64_t> groups_before(HstuSequences const& sequences, std::vector<Sequence> const& runs) {
  std::vector<std::int64_t> before{0};
  for (Sequence const& run : runs) before.push_back(before.back() + num_groups(run.num_queries()));
  for (std::int64_t b = 0; sequences.query_runs == nullptr && b < sequences.num_sequences; ++b)
    before.push_back(before.back() + num_groups(sequences.query_offsets[b + 1] - sequences.query_offsets[b]));
  return before;
}

}  // namespace

/// Shares out groups of queries, by head and sequence, among threads.
template <class Element>
void run_forward_pass(HstuForwardArgs const& args, int num_threads, Executor const& executor) {
  BlockKernels<Element> const& kernels = usable_block_kernels<Element>().back();
  std::vector<Sequence> const runs = runs_of(args);
  std::vector<std::int64_t> const before = groups_before(args.sequences, runs);
  std::int64_t const num_items = before.back() * args.num_heads;
  std::vector<ForwardGroup<Element>> groups;
  for (int thread = 0; thread < num_threads && thread < num_items; ++thread) groups.emplace_back(args, kernels);

  for_each_item(num_items, num_threads, executor, [&](int thread, std::int64_t item) {
    auto const next = std::upper_bound(before.begin(), before.end(), item / args.num_heads);
    std::int64_t const index = next - before.begin() - 1;
    Sequence const sequence = runs.empty() ? sequence_of(args, index) : runs[static_cast<std::size_t>(index)];
    // Items of one head follow each other, so its keys and values stay in a near cache. A head begins with its last
    // queries, which see most keys under a causal mask.
    std::int64_t const groups_of_head = *next - *(next - 1), in_sequence = item - *(next - 1) * args.num_heads;
    std::int64_t const head = in_sequence / groups_of_head;
    std::int64_t const begin = (groups_of_head - 1 - in_sequence % groups_of_head) * kGroupSize;
    TokenRange const queries{begin, std::min(kGroupSize, sequence.num_queries() - begin)};
    groups[static_cast<std::size_t>(thread)].compute(sequence, head, queries);
  });
}

template void run_forward_pass<float>(HstuForwardArgs const& args, int num_threads, Executor const& executor);
template void run_forward_pass<double>(HstuForwardArgs const& args, int num_threads, Executor const& executor);
template void run_forward_pass<Bfloat16Pair>(HstuForwardArgs const& args, int num_threads, Executor const& executor);

}  // namespace headway::kernels::hstu
