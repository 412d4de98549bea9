// SPDX-License-Identifier: Apache-2.0

// Rounding to pairs of bfloat16, the operands of dot products, by AVX512_BF16 instructions. These treat numbers of
// magnitude below 2^-126 as zero.
//
// _mm512_cvtne2ps_pbh(second, first) rounds two vectors of 16 floats to one of 32 numbers. Its last operand, `first`,
// fills the lower half, and `second` the upper half.
// That is already the layout for neighbours in a row. For neighbours in a column the halves are interleaved: numbers
// f0 f1 ... s0 s1 ... become f0 s0 f1 s1 ..., by the index vector 0 16 1 17 2 18 ...

#pragma once

#include "hstu/cpu/simd/vector.hpp"

#include <immintrin.h>

namespace headway::kernels::hstu {
namespace {

/// Rounds rows 2 i and 2 i + 1 into pairs. A missing last row counts as zero.
inline void pair_rows(float const* block, std::int64_t rows, std::int64_t columns, Bfloat16Pair* pairs) {
  using Vector = Simd<float>::Vector;
  typedef std::uint16_t Words16 __attribute__((vector_size(kVectorBytes)));
  Words16 alternating;  // Index vector that interleaves both halves of a vector.
  for (int i = 0; i < 32; ++i) alternating[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 16);
  for (std::int64_t row = 0; row < rows; row += 2, block += 2 * kBlockSize, pairs += kBlockSize)
    for (std::int64_t column = 0; column < columns; column += Simd<float>::kLanes) {
      Vector const first = load_vector(block + column);
      Vector const second = row + 1 < rows ? load_vector(block + kBlockSize + column) : Vector{};
      auto const rounded = same_bits<__m512i>(_mm512_cvtne2ps_pbh(second, first));
      __m512i const paired = _mm512_permutexvar_epi16(same_bits<__m512i>(alternating), rounded);
      store_vector<Bfloat16Pair>(same_bits<Simd<Bfloat16Pair>::Vector>(paired), pairs + column);
    }
}

/// Rounds columns 2 i and 2 i + 1 into pairs. A missing last column counts as zero.
inline void pair_columns(float const* block, std::int64_t rows, std::int64_t columns, Bfloat16Pair* pairs) {
  constexpr std::int64_t kLanes = Simd<float>::kLanes;
  for (std::int64_t row = 0; row < rows; ++row, block += kBlockSize, pairs += kBlockSize / 2) {
    for (std::int64_t column = 0; column < columns; column += 2 * kLanes) {
      Simd<float>::Vector const first = load_vector(block + column), second = load_vector(block + column + kLanes);
      auto const rounded = same_bits<Simd<Bfloat16Pair>::Vector>(_mm512_cvtne2ps_pbh(second, first));
      store_vector<Bfloat16Pair>(rounded, pairs + column / 2);
    }
    if (columns % 2 != 0) pairs[columns / 2].bits &= 0xffffU;
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
