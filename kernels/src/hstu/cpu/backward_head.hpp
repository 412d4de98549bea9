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

namespace headway::kernels::hstu {

/// Rows of a head as the second operand of a product that sums over the rows. The rows are then the depth of the
/// product (GemmArgs::depth). Elements that are pairs (Bfloat16Pair) must join two rows, not two columns.
template <class Element>
class DeepRows {
 public:
  explicit DeepRows(std::int64_t columns)
      : stride_(padded(columns)), pairs_(kIsSingle<Element> ? 0 : kBlockSize / 2 * stride_) {}

  /// Loads the rows. `loaded` is the result of BlockKernels::load() for the same rows. If an element is a single number
  /// (kIsSingle), it is used without a copy and must outlive the use of rows().
  void load(BlockKernels<Element> const& kernels, ElementRows<void const*> const& source, Element const* loaded) {
    if constexpr (kIsSingle<Element>)
      data_ = loaded;
    else
      kernels.load_deep(source, pairs_.data(), stride_);
  }

  [[nodiscard]] Rows<Element const> rows() const { return {kIsSingle<Element> ? data_ : pairs_.data(), stride_}; }

 private:
  std::int64_t stride_;
  AlignedBuffer<Element> pairs_;   ///< Each element joins two neighbouring rows; empty if elements are single numbers.
  Element const* data_ = nullptr;  ///< The loaded rows if elements are single numbers.
};

/// Destination of gradients of bias weights for one head of a sequence; null for those that are not wanted.
template <class Real>
struct BiasGradients {
  Real* of_position;  ///< (2 * keys - 1), see BlockBias::add_gradients().
  Real* of_time;      ///< (HstuBias::num_time_bounds + 1), one per bucket of time differences.
};

/// Backward pass of one head of a sequence on one thread, with its buffers.
///
/// Idea: the scores S and the gradient dP of a block are computed once and serve all gradients (backward_head.cpp has
/// the formulas). They are stored transposed, with a row per key; a prime marks this: S', dP'. Queries are the outer
/// loop, so dQ is complete after the inner loop; dK and dV are accumulated for all keys until the end.
///
/// Invariant: a head of a sequence has one thread, so the order of all sums is fixed.
/// Complexity: 5 matrix products per visible block (S', dP', dV, dQ, dK). Memory: dK and dV of the longest sequence.
template <class Element>
class BackwardHead {
 public:
  using Real = SumOf<Element>;

  BackwardHead(HstuBackwardArgs const& args, BlockKernels<Element> const& kernels);

  /// Computes the gradients of a head of a sequence: writes its dQ, dK and dV to the call's outputs, and adds those of
  /// bias weights to `of_bias`.
  void compute(Sequence const& sequence, std::int64_t head, BiasGradients<Real> const& of_bias);

 private:
  /// Writes dQ of a run of queries, and adds to all other gradients.
  void add_run(Sequence const& run, std::int64_t head, BiasGradients<Real> const& of_bias);
  /// Loads Q and dO of a block of queries in all layouts that its products need.
  void load_queries(Sequence const& sequence, std::int64_t head, TokenRange queries);
  /// Adds one visible block of queries and keys to all gradients.
  void add_block(Sequence const& sequence, std::int64_t head, TokenRange keys, BlockVisibility visibility,
                 BiasGradients<Real> const& of_bias);
  void compute_dp(Sequence const& sequence, std::int64_t head, TokenRange keys);
  void accumulate_gradients(ScoreBlock<Real> const& block, TokenRange keys);

  HstuBackwardArgs const& args_;
  HstuForwardArgs const& forward_;
  BlockKernels<Element> const& kernels_;
  std::int64_t row_stride_, value_stride_;
  QueryBlock<Element> queries_;
  ScoreBlocks<Element> score_blocks_;
  PdsOperand<Element> pds_operand_;  ///< P or dS of the present block, as first operand of dV, dQ and dK.
  AlignedBuffer<Element> values_, grad_out_, transposed_grad_out_;
  DeepRows<Element> deep_queries_, deep_keys_, deep_grad_out_;
  AlignedBuffer<Real> ds_, grad_queries_;        ///< For the present block (first dP', then dS'), and its queries.
  AlignedBuffer<Real> grad_keys_, grad_values_;  ///< For all keys of the sequence.
};

}  // namespace headway::kernels::hstu
