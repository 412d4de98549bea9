// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/pds_operand.hpp"
#include "hstu/cpu/query_block.hpp"
#include "hstu/cpu/score_blocks.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace headway::kernels::hstu {

/// Largest number of queries in a group.
inline constexpr std::int64_t kGroupSize = 4 * kBlockSize;

/// Forward pass of a group of queries of one head on one thread, with its buffers.
///
/// Idea: up to four blocks of queries share each block of keys and values: it is converted once and used while it is in
/// the cache.
///
/// Example: causal, 300 queries and keys. The group of queries 0 to 255 loads key blocks 0 to 3; block 0 serves all
/// four blocks of queries, block 3 only the last. Keys 256 to 299 are never loaded for it.
///
/// Invariant: an output row has one thread and a fixed order of sums.
template <class Element>
class ForwardGroup {
 public:
  ForwardGroup(HstuForwardArgs const& args, BlockKernels<Element> const& kernels);

  /// Computes the output of at most kGroupSize queries.
  void compute(Sequence const& sequence, std::int64_t head, TokenRange queries);

 private:
  /// Block of queries with the accumulator of its output.
  struct Block {
    Block(std::int64_t dim, std::int64_t value_stride) : queries(dim), out(kBlockSize * value_stride) {}
    QueryBlock<Element> queries;
    AlignedBuffer<SumOf<Element>> out;
  };

  /// Adds the contribution of a block of keys and values to all blocks of queries that see it.
  void add_keys(std::span<Block> blocks, Sequence const& sequence, std::int64_t head, TokenRange keys);

  HstuForwardArgs const& args_;
  BlockKernels<Element> const& kernels_;
  std::int64_t value_stride_;
  ScoreBlocks<Element> score_blocks_;
  PdsOperand<Element> pds_operand_;
  AlignedBuffer<Element> values_;
  std::vector<Block> blocks_;
};

}  // namespace headway::kernels::hstu
