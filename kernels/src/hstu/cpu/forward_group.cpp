// SPDX-License-Identifier: Apache-2.0

// Forward pass of a group of queries on the CPU; forward_group.hpp has the idea.

#include "hstu/cpu/forward_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels::hstu {

template <class Element>
ForwardGroup<Element>::ForwardGroup(HstuForwardArgs const& args, BlockKernels<Element> const& kernels)
    : args_(args),
      kernels_(kernels),
      value_stride_(padded(args.value_dim)),
      score_blocks_(args, kernels),
      pds_operand_(kernels),
      values_(kBlockSize * value_stride_) {
  for_each_block({0, std::min(args.sequences.max_queries, kGroupSize)},
                 [&](TokenRange) { blocks_.emplace_back(args.dim, value_stride_); });
}

template <class Element>
void ForwardGroup<Element>::compute(Sequence const& sequence, std::int64_t head, TokenRange queries) {
  std::size_t used = 0;
  for_each_block(queries, [&](TokenRange range) {
    Block& block = blocks_[used++];
    block.queries.load(args_, kernels_, sequence, head, range);
    std::fill_n(block.out.data(), range.size * value_stride_, SumOf<Element>(0));
  });
  std::span<Block> const blocks{blocks_.data(), used};
  for_each_block({0, sequence.num_keys()}, [&](TokenRange keys) {
    // Keys that no query of the group sees are not even loaded.
    if (visibility_of(sequence, queries, keys) != BlockVisibility::kNone) add_keys(blocks, sequence, head, keys);
  });
  for (Block const& block : blocks) {
    TokenRange const range = block.queries.range();
    kernels_.store(
        block.out.data(), value_stride_,
        rows_of(args_.out, args_.type, head, sequence.first_query + range.begin, range.size, args_.value_dim));
  }
}

template <class Element>
void ForwardGroup<Element>::add_keys(std::span<Block> blocks, Sequence const& sequence, std::int64_t head,
                                     TokenRange keys) {
  score_blocks_.load_keys(sequence, head, keys);
  kernels_.load_deep(
      rows_of(args_.value, args_.type, head, sequence.first_key + keys.begin, keys.size, args_.value_dim),
      values_.data(), value_stride_);
  for (Block& block : blocks) {
    BlockVisibility const visibility = visibility_of(sequence, block.queries.range(), keys);
    if (visibility == BlockVisibility::kNone) continue;
    ScoreBlock<SumOf<Element>> const scores = score_blocks_.compute(block.queries, visibility);
    kernels_.compute_p(scores);
    kernels_.gemm({.rows = scores.num_queries,
                   .columns = args_.value_dim,
                   .depth = depth_of<Element>(scores.num_keys),
                   .a = pds_operand_.queries_by_keys(scores.s, scores.num_keys, scores.num_queries),
                   .b = {values_.data(), value_stride_},
                   .c = {block.out.data(), value_stride_},
                   .into = Into::kAdd});
  }
}

template class ForwardGroup<float>;
template class ForwardGroup<double>;
template class ForwardGroup<Bfloat16Pair>;

}  // namespace headway::kernels::hstu
