#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_bias.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Blocks of scores of one head of a sequence at a time: the products of some queries with some keys, still without
/// alpha and bias. They have a row for each key: so keys are read as they lie, and it is the queries that are
/// transposed, once for all their keys.
template <class Real>
class ScoreBlocks {
 public:
  ScoreBlocks(HstuForwardArgs const& args, BlockKernels<Real> const& kernels);

  void set_queries(Sequence const& sequence, std::int64_t head, TokenRange queries);
  [[nodiscard]] BlockVisibility visibility(TokenRange keys) const;
  /// Computes the scores of the queries and these keys. The block is valid until the next call.
  ScoreBlock<Real> compute(TokenRange keys, BlockVisibility visibility);

  [[nodiscard]] BlockBias<Real> const& bias() const { return bias_; }
  /// As loaded, rows row_stride() apart.
  [[nodiscard]] Real const* queries() const { return queries_.data(); }
  [[nodiscard]] Real const* keys() const { return keys_.data(); }
  [[nodiscard]] std::int64_t row_stride() const { return row_stride_; }

 private:
  void set_seen_keys();

  HstuForwardArgs const& args_;
  BlockKernels<Real> const& kernels_;
  std::int64_t row_stride_;
  AlignedBuffer<Real> queries_, transposed_queries_, keys_, scores_;
  BlockBias<Real> bias_;
  SeenKeys<Real> seen_;

  Sequence sequence_;
  std::int64_t head_ = 0;
  TokenRange query_range_{0, 0};
};

}  // namespace headway::kernels::hstu
