#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/deep_rows.hpp"
#include "hstu/cpu/query_block.hpp"
#include "hstu/cpu/score_blocks.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/cpu/weight_factor.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Where gradients of bias weights of one head of a sequence go; null where not wanted.
template <class Real>
struct BiasGradients {
  Real* of_position;  ///< (2 * keys - 1), see BlockBias::add_gradients.
  Real* of_time;
};

/// What a thread needs to compute gradients of heads. Scores are computed once for all gradients: those of queries are
/// complete after a row of blocks, those of keys and values are added up until the last.
template <class Element>
class BackwardHead {
 public:
  using Real = SumOf<Element>;

  BackwardHead(HstuBackwardArgs const& args, BlockKernels<Element> const& kernels);

  /// Computes the gradients of a head of a sequence.
  void compute(Sequence const& sequence, std::int64_t head, BiasGradients<Real> const& of_bias);

 private:
  void load_queries(Sequence const& sequence, std::int64_t head, TokenRange queries);
  void add_block(Sequence const& sequence, std::int64_t head, TokenRange keys, BlockVisibility visibility,
                 BiasGradients<Real> const& of_bias);
  void multiply_values(Sequence const& sequence, std::int64_t head, TokenRange keys);
  void multiply_gradients(ScoreBlock<Real> const& block, TokenRange keys);

  HstuBackwardArgs const& args_;
  HstuForwardArgs const& forward_;
  BlockKernels<Element> const& kernels_;
  std::int64_t row_stride_, value_stride_;
  QueryBlock<Element> queries_;
  ScoreBlocks<Element> scores_;
  WeightFactor<Element> weights_;
  AlignedBuffer<Element> values_, grad_out_, transposed_grad_out_;
  DeepRows<Element> deep_queries_, deep_keys_, deep_grad_out_;
  AlignedBuffer<Real> grad_scores_, grad_queries_;  ///< Of the block and its queries.
  AlignedBuffer<Real> grad_keys_, grad_values_;     ///< Of the sequence.
};

}  // namespace headway::kernels::hstu
