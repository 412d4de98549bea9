#include "hstu/cpu/forward_pass.hpp"

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/parallel_for.hpp"
#include "hstu/cpu/score_blocks.hpp"
#include "hstu/sequence.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace headway::kernels::hstu {
namespace {

/// What a thread needs to compute blocks of the output.
template <class Real>
class ForwardBlock {
 public:
  ForwardBlock(HstuForwardArgs const& args, BlockKernels<Real> const& kernels)
      : args_(args),
        kernels_(kernels),
        value_stride_(padded(args.value_dim)),
        scores_(args, kernels),
        values_(kBlockSize * value_stride_),
        out_(kBlockSize * value_stride_) {}

  /// Computes the output of some queries.
  void compute(Sequence const& sequence, std::int64_t head, TokenRange queries) {
    scores_.set_queries(sequence, head, queries);
    std::fill_n(out_.data(), queries.size * value_stride_, Real(0));
    for (std::int64_t begin = 0; begin < sequence.num_keys(); begin += kBlockSize) {
      TokenRange const keys{begin, std::min(kBlockSize, sequence.num_keys() - begin)};
      BlockVisibility const visibility = scores_.visibility(keys);
      if (visibility != BlockVisibility::kNone) add_values(sequence, head, queries, keys, visibility);
    }
    kernels_.store(
        out_.data(), value_stride_,
        rows_of(args_.out, args_.type, head, sequence.first_query + queries.begin, queries.size, args_.value_dim));
  }

 private:
  /// out += weights * values, the weights lying transposed.
  void add_values(Sequence const& sequence, std::int64_t head, TokenRange queries, TokenRange keys,
                  BlockVisibility visibility) {
    ScoreBlock<Real> const block = scores_.compute(keys, visibility);
    kernels_.weigh(block);
    kernels_.load(rows_of(args_.value, args_.type, head, sequence.first_key + keys.begin, keys.size, args_.value_dim),
                  values_.data(), value_stride_);
    kernels_.multiply({.rows = queries.size,
                       .columns = args_.value_dim,
                       .depth = keys.size,
                       .a = block.scores,
                       .a_row_stride = 1,
                       .a_depth_stride = kBlockSize,
                       .b = values_.data(),
                       .b_stride = value_stride_,
                       .c = out_.data(),
                       .c_stride = value_stride_,
                       .into = Into::kAdd});
  }

  HstuForwardArgs const& args_;
  BlockKernels<Real> const& kernels_;
  std::int64_t value_stride_;
  ScoreBlocks<Real> scores_;
  AlignedBuffer<Real> values_, out_;
};

std::int64_t num_blocks(std::int64_t tokens) { return (tokens + kBlockSize - 1) / kBlockSize; }

/// Of each sequence, how many blocks of queries those before it have; and of all.
std::vector<std::int64_t> blocks_before(HstuSequences const& sequences) {
  std::vector<std::int64_t> before{0};
  for (std::int64_t b = 0; b < sequences.num_sequences; ++b)
    before.push_back(before.back() + num_blocks(sequences.query_offsets[b + 1] - sequences.query_offsets[b]));
  return before;
}

}  // namespace

template <class Real>
void run_forward_pass(HstuForwardArgs const& args, int num_threads) {
  BlockKernels<Real> const& kernels = usable_block_kernels<Real>().back();
  std::vector<std::int64_t> const before = blocks_before(args.sequences);
  std::int64_t const num_items = before.back() * args.num_heads;
  std::vector<std::unique_ptr<ForwardBlock<Real>>> blocks;
  for (int thread = 0; thread < num_threads && (thread == 0 || thread < num_items); ++thread)
    blocks.push_back(std::make_unique<ForwardBlock<Real>>(args, kernels));

  parallel_for(num_items, num_threads, [&](int thread, std::int64_t item) {
    auto const next = std::upper_bound(before.begin(), before.end(), item / args.num_heads);
    Sequence const sequence = sequence_of(args, next - before.begin() - 1);
    // One head after the other, so that its keys and values stay in a cache near by; each from its last queries, which
    // see most where it is causal.
    std::int64_t const blocks_of_head = *next - *(next - 1), in_sequence = item - *(next - 1) * args.num_heads;
    std::int64_t const head = in_sequence / blocks_of_head;
    std::int64_t const begin = (blocks_of_head - 1 - in_sequence % blocks_of_head) * kBlockSize;
    TokenRange const queries{begin, std::min(kBlockSize, sequence.num_queries() - begin)};
    blocks[static_cast<std::size_t>(thread)]->compute(sequence, head, queries);
  });
}

template void run_forward_pass<float>(HstuForwardArgs const& args, int num_threads);
template void run_forward_pass<double>(HstuForwardArgs const& args, int num_threads);

}  // namespace headway::kernels::hstu
