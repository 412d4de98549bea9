// SPDX-License-Identifier: Apache-2.0

// Matrix products of small blocks, compiled per instruction set.
//
// Idea: a tile of 4 rows and 2 or 4 vectors of columns has its sums in registers for the whole depth. Each step of
// the depth loads the vectors of b once and broadcasts one number of a per row: with AVX-512, 4 + 4 loads feed 16
// multiply-adds of 16 numbers each.
//
// Example: rows 6, columns 20, AVX2 (8 lanes). 20 columns take 3 vectors: a tile of 2, then one of 1. Rows 0 to 3 and 4
//  to 7: rows 6 and 7 are padding, which operands have room for and nobody reads.
//
// Complexity: rows * columns * depth multiply-adds, rounded up to whole tiles.

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
inline void gemm_tile(GemmArgs<Element> const& args, std::int64_t row, std::int64_t column) {
  using Real = SumOf<Element>;
  using Vector = typename Simd<Real>::Vector;
  Vector sums[kTileRows][kVectors] = {};
  Element const* a = args.a.data + row * args.a.row_stride;
  Element const* b = args.b.data + column;
  for (std::int64_t depth = 0; depth < args.depth; ++depth, a += args.a.column_stride, b += args.b.stride) {
    typename Simd<Element>::Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load_vector(b + v * Simd<Element>::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      Element const factor = a[r * args.a.row_stride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    Real* c = args.c.data + (row + r) * args.c.stride + column;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v, c += Simd<Real>::kLanes)
      store_vector(args.into == Into::kAdd ? load_vector(c) + sums[r][v] : sums[r][v], c);
  }
}

/// Computes all rows of at most kVectors vectors of columns. The number of vectors becomes a template argument, so that
/// gemm_tile() knows how many registers it needs.
template <class Element, int kVectors = kTileVectors>
inline void gemm_columns(GemmArgs<Element> const& args, std::int64_t column, std::int64_t vectors) {
  if constexpr (kVectors > 1)
    if (vectors < kVectors) return gemm_columns<Element, kVectors - 1>(args, column, vectors);
  for (std::int64_t row = 0; row < args.rows; row += kTileRows) gemm_tile<Element, kVectors>(args, row, column);
}

/// Computes a product tile by tile.
template <class Element>
void gemm(GemmArgs<Element> const& args) {
  constexpr std::int64_t kLanes = Simd<Element>::kLanes;
  for (std::int64_t column = 0; column < args.columns; column += kTileVectors * kLanes) {
    std::int64_t const vectors = (args.columns - column + kLanes - 1) / kLanes;
    gemm_columns<Element>(args, column, vectors < kTileVectors ? vectors : kTileVectors);
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
