// SPDX-License-Identifier: Apache-2.0

// Queries of a block, prepared once for all blocks of keys that they meet. A block of queries
// may meet a hundred blocks of keys, so the time for conversion, transposition and the search for visible keys hardly
// counts.

#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Block of queries of a head in the layouts that scores need: rows, transposed, and the keys that each query sees.
template <class Element>
class QueryBlock {
 public:
  using Real = SumOf<Element>;

  explicit QueryBlock(std::int64_t dim)
      : rows_(kBlockSize * depth_of<Element>(padded(dim))), transposed_(depth_of<Element>(dim) * kBlockSize) {}

  /// Converts and transposes queries [range.begin, range.begin + range.size), and computes their visible keys.
  void load(HstuForwardArgs const& args, BlockKernels<Element> const& kernels, Sequence const& sequence,
            std::int64_t head, TokenRange range) {
    range_ = range;
    std::int64_t const stride = depth_of<Element>(padded(args.dim));
    kernels.load(rows_of(args.query, args.type, head, sequence.first_query + range.begin, range.size, args.dim),
                 rows_.data(), stride);
    kernels.transpose(rows_.data(), stride, range.size, depth_of<Element>(args.dim), transposed_.data(), kBlockSize);
    for (std::int64_t i = 0; i < range.size; ++i) {
      auto const query = static_cast<std::int32_t>(range.begin + i);
      HstuKeyRange const seen = sequence.mask.keys_seen_by(query);
      seen_.begin[i] = seen.begin;
      seen_.end[i] = seen.end;
      seen_.self[i] = sequence.mask.token_of(query);
    }
  }

  [[nodiscard]] TokenRange range() const { return range_; }
  [[nodiscard]] Element const* rows() const { return rows_.data(); }  ///< Rows are depth_of(padded(dim)) apart.
  [[nodiscard]] Element const* transposed() const { return transposed_.data(); }  ///< (depth_of(dim), kBlockSize)
  [[nodiscard]] SeenKeys<Real> const& seen() const { return seen_; }

 private:
  TokenRange range_{0, 0};
  AlignedBuffer<Element> rows_, transposed_;
  SeenKeys<Real> seen_;
};

}  // namespace headway::kernels::hstu
