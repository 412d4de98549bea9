#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/query_block.hpp"
#include "hstu/cpu/score_blocks.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/cpu/weight_factor.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace headway::kernels::hstu {

/// Most queries of a group.
inline constexpr std::int64_t kGroupSize = 4 * kBlockSize;

/// What a thread needs to compute the output of some blocks of queries, for which keys and values are loaded once.
template <class Element>
class ForwardGroup {
 public:
  ForwardGroup(HstuForwardArgs const& args, BlockKernels<Element> const& kernels);

  /// Computes the output of at most kGroupSize queries.
  void compute(Sequence const& sequence, std::int64_t head, TokenRange queries);

 private:
  /// Queries and the sums of their output.
  struct Block {
    Block(std::int64_t dim, std::int64_t value_stride) : queries(dim), out(kBlockSize * value_stride) {}
    QueryBlock<Element> queries;
    AlignedBuffer<SumOf<Element>> out;
  };

  /// Adds what the blocks see of some keys to their output.
  void add_keys(std::span<Block> blocks, Sequence const& sequence, std::int64_t head, TokenRange keys);

  HstuForwardArgs const& args_;
  BlockKernels<Element> const& kernels_;
  std::int64_t value_stride_;
  ScoreBlocks<Element> scores_;
  WeightFactor<Element> weights_;
  AlignedBuffer<Element> values_;
  std::vector<Block> blocks_;
};

}  // namespace headway::kernels::hstu
