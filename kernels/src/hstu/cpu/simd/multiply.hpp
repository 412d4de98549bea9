#pragma once

#include "hstu/cpu/simd/vector.hpp"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace headway::kernels::hstu {
namespace {

// Register tile of a product: as many accumulators as fit beside the operands. AVX-512 and aarch64 have 32 vector
// registers, others 16.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kTileRows = 4, kTileVectors = 4;
#else
inline constexpr int kTileRows = 4, kTileVectors = 2;
#endif

template <class Real>
inline typename Simd<Real>::Vector multiply_add(Real factor, typename Simd<Real>::Vector const& columns,
                                                typename Simd<Real>::Vector const& sum) {
  return sum + factor * columns;
}

#if defined(__AVX512BF16__)
/// Adds the product of the upper numbers, then that of the lower numbers. Both sums are rounded to float32; numbers
/// below 2^-126 count as zero.
inline Simd<float>::Vector multiply_add(Bfloat16Pair factor, Simd<Bfloat16Pair>::Vector const& columns,
                                        Simd<float>::Vector const& sum) {
  Simd<Bfloat16Pair>::Vector const factors = Simd<Bfloat16Pair>::Vector{} + factor.bits;
  return _mm512_dpbf16_ps(sum, same_bits<__m512bh>(factors), same_bits<__m512bh>(columns));
}
#endif

/// Computes kTileRows rows and kVectors vectors of columns of a product, with all accumulators in registers.
template <class Element, int kVectors>
inline void multiply_tile(Product<Element> const& product, std::int64_t row, std::int64_t column) {
  using Real = SumOf<Element>;
  using Vector = typename Simd<Real>::Vector;
  Vector sums[kTileRows][kVectors] = {};
  Element const* a = product.a.data + row * product.a.row_stride;
  Element const* b = product.b.data + column;
  for (std::int64_t depth = 0; depth < product.depth; ++depth, a += product.a.column_stride, b += product.b.stride) {
    typename Simd<Element>::Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load_vector(b + v * Simd<Element>::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      Element const factor = a[r * product.a.row_stride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    Real* c = product.c.data + (row + r) * product.c.stride + column;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v, c += Simd<Real>::kLanes)
      store_vector(product.into == Into::kAdd ? load_vector(c) + sums[r][v] : sums[r][v], c);
  }
}

/// Computes all rows of at most kVectors vectors of columns.
template <class Element, int kVectors = kTileVectors>
inline void multiply_columns(Product<Element> const& product, std::int64_t column, std::int64_t vectors) {
  if constexpr (kVectors > 1)
    if (vectors < kVectors) return multiply_columns<Element, kVectors - 1>(product, column, vectors);
  for (std::int64_t row = 0; row < product.rows; row += kTileRows)
    multiply_tile<Element, kVectors>(product, row, column);
}

/// Computes a product tile by tile.
template <class Element>
void multiply(Product<Element> const& product) {
  constexpr std::int64_t kLanes = Simd<Element>::kLanes;
  for (std::int64_t column = 0; column < product.columns; column += kTileVectors * kLanes) {
    std::int64_t const vectors = (product.columns - column + kLanes - 1) / kLanes;
    multiply_columns<Element>(product, column, vectors < kTileVectors ? vectors : kTileVectors);
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
