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

/// Rows of a head as the second operand of a product that sums over these rows.
template <class Element>
class DeepRows {
 public:
  explicit DeepRows(std::int64_t columns)
      : stride_(padded(columns)), pairs_(kIsSingle<Element> ? 0 : kBlockSize / 2 * stride_) {}

  /// Loads the rows. `loaded` is the result of BlockKernels::load() for the same rows; single numbers are used from
  /// there without a copy.
  void load(BlockKernels<Element> const& kernels, ElementRows<void const*> const& source, Element const* loaded) {
    if constexpr (kIsSingle<Element>)
      data_ = loaded;
    else
      kernels.load_deep(source, pairs_.data(), stride_);
  }

  [[nodiscard]] Rows<Element const> rows() const { return {kIsSingle<Element> ? data_ : pairs_.data(), stride_}; }

 private:
  std::int64_t stride_;
  AlignedBuffer<Element> pairs_;
  Element const* data_ = nullptr;
};

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
  void compute_dp(Sequence const& sequence, std::int64_t head, TokenRange keys);
  void accumulate_gradients(ScoreBlock<Real> const& block, TokenRange keys);

  HstuBackwardArgs const& args_;
  HstuForwardArgs const& forward_;
  BlockKernels<Element> const& kernels_;
  std::int64_t row_stride_, value_stride_;
  QueryBlock<Element> queries_;
  ScoreBlocks<Element> score_blocks_;
  PdsOperand<Element> pds_operand_;
  AlignedBuffer<Element> values_, grad_out_, transposed_grad_out_;
  DeepRows<Element> deep_queries_, deep_keys_, deep_grad_out_;
  AlignedBuffer<Real> ds_, grad_queries_;        ///< For the present block, and for its queries.
  AlignedBuffer<Real> grad_keys_, grad_values_;  ///< For all keys of the sequence.
};

}  // namespace headway::kernels::hstu
