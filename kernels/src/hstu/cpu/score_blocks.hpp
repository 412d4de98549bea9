// SPDX-License-Identifier: Apache-2.0

// Blocks of scores on the CPU: the first product of both passes.
//
// S' = K Q^T has keys as rows. A product reads its second operand row by row along the summed index, so Q is
// transposed once per block of queries, and keys are used as they lie in memory. The second product, O = P V, then
// sums over the rows of P', which its first operand can do with strides swapped.

#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_bias.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/query_block.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Blocks of scores S' of one head of a sequence, without alpha and bias. A row belongs to a key: keys are used in
/// their own layout, and the queries are transposed once for all their keys.
template <class Element>
class ScoreBlocks {
 public:
  using Real = SumOf<Element>;

  ScoreBlocks(HstuForwardArgs const& args, BlockKernels<Element> const& kernels)
      : args_(args),
        kernels_(kernels),
        key_stride_(depth_of<Element>(padded(args.dim))),
        keys_(kBlockSize * key_stride_),
        s_(kBlockSize * kBlockSize),
        bias_(args.bias) {}

  /// Converts a block of keys.
  void load_keys(Sequence const& sequence, std::int64_t head, TokenRange range) {
    sequence_ = sequence;
    range_ = range;
    kernels_.load(rows_of(args_.key, args_.type, head, sequence.first_key + range.begin, range.size, args_.dim),
                  keys_.data(), key_stride_);
  }

  /// Computes S' for the keys loaded last. The block is valid until the next call.
  [[nodiscard]] ScoreBlock<Real> compute(QueryBlock<Element> const& queries, BlockVisibility visibility) {
    kernels_.gemm({.rows = range_.size,
                   .columns = queries.range().size,
                   .depth = depth_of<Element>(args_.dim),
                   .a = {keys_.data(), key_stride_},
                   .b = {queries.transposed(), kBlockSize},
                   .c = {s_.data(), kBlockSize}});
    return {.num_keys = range_.size,
            .num_queries = queries.range().size,
            .s = s_.data(),
            .bias = bias_.fill(sequence_, queries.range(), range_),
            .seen = visibility == BlockVisibility::kFull ? nullptr : &queries.seen(),
            .first_key = static_cast<MaskIndex<Real>>(range_.begin),
            .alpha = static_cast<Real>(args_.options.alpha),
            .scale = static_cast<Real>(scale_of(args_.options, sequence_))};
  }

  [[nodiscard]] BlockBias<Real> const& bias() const { return bias_; }
  [[nodiscard]] Element const* keys() const { return keys_.data(); }  ///< Rows are depth_of(padded(dim)) apart.

 private:
  HstuForwardArgs const& args_;
  BlockKernels<Element> const& kernels_;
  std::int64_t key_stride_;
  AlignedBuffer<Element> keys_;
  AlignedBuffer<Real> s_;
  BlockBias<Real> bias_;
  Sequence sequence_;
  TokenRange range_{0, 0};  ///< Range of the keys.
};

}  // namespace headway::kernels::hstu
