// SPDX-License-Identifier: Apache-2.0

// P or dS as an operand of the products that follow the scores: O, dV, dK and dQ. Processors with AVX512_BF16 multiply
// pairs of bfloat16 numbers that are neighbours along the summed index. The same block is summed over keys in one
// product and over queries in another, so it is paired in either direction.

#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Block of P or dS as the first operand of products: single numbers in place, or rounded to pairs. Blocks have a row
/// per key, kBlockSize apart. Results are valid until the next call.
template <class Element>
class PdsOperand {
 public:
  using Real = SumOf<Element>;

  explicit PdsOperand(BlockKernels<Element> const& kernels) : kernels_(kernels) {}

  /// Operand of a product that sums over keys (O and dQ).
  OperandA<Element> queries_by_keys(Real const* block, std::int64_t num_keys, std::int64_t num_queries) {
    if constexpr (kIsSingle<Element>) {
      return OperandA<Element>{block, kBlockSize}.transposed();
    } else {
      kernels_.pair_rows(block, num_keys, num_queries, pairs_.data());
      return OperandA<Element>{pairs_.data(), kBlockSize}.transposed();
    }
  }

  /// Operand of a product that sums over queries (dV and dK).
  OperandA<Element> keys_by_queries(Real const* block, std::int64_t num_keys, std::int64_t num_queries) {
    if constexpr (kIsSingle<Element>) {
      return {block, kBlockSize};
    } else {
      kernels_.pair_columns(block, num_keys, num_queries, pairs_.data());
      return {pairs_.data(), kBlockSize / 2};
    }
  }

 private:
  BlockKernels<Element> const& kernels_;
  AlignedBuffer<Element> pairs_{kIsSingle<Element> ? 0 : kBlockSize * kBlockSize / 2};
};

}  // namespace headway::kernels::hstu
