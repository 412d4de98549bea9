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

/// Destination of gradients of bias weights for one head of a sequence; null for those that are not wanted.
template <class Real>
struct BiasGradients {
  Real* of_position;  ///< (2 * keys - 1), see BlockBias::add_gradients().
  Real* of_time;      ///< (num_time_bounds + 1)
};

/// Backward pass of one head of a sequence on one thread, with its buffers.
///
/// Idea: S' and dP' of a block of keys (rows) and queries (columns) are computed once and serve all gradients. The
/// queries are the outer loop, so dQ is complete after the inner loop; dK and dV are accumulated for all keys until the
/// end.
///
/// Invariant: a head of a sequence has one thread, so the order of all sums is fixed.
/// Complexity: 5 products per visible block. Memory: dK and dV of the longest sequence.
template <class Element>
class BackwardHead {
 public:
  using Real = SumOf<Element>;

  BackwardHead(HstuBackwardArgs const& args, BlockKernels<Element> const& kernels);

  /// Computes the gradients of a head of a sequence.
  void compute(Sequence const& sequence, std::int64_t head, BiasGradients<Real> const& of_bias);

 private:
  /// Loads Q and dO of a block of queries in all layouts that its products need.
  void load_queries(Sequence const& sequence, std::int64_t head, TokenRange queries);
  /// Adds one visible block of queries and keys to all gradients.
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
  AlignedBuffer<Real> grad_scores_, grad_queries_;  ///< For the present block, and for its queries.
  AlignedBuffer<Real> grad_keys_, grad_values_;     ///< For all keys of the sequence.
};

}  // namespace headway::kernels::hstu
