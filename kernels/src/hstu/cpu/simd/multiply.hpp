#pragma once

#include "hstu/cpu/simd/vector.hpp"

namespace headway::kernels::hstu {
namespace {

// As many sums as registers hold beside the operands: 32 of AVX-512 and of aarch64, 16 of others.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kTileRows = 4, kTileVectors = 4;
#else
inline constexpr int kTileRows = 4, kTileVectors = 2;
#endif

/// kTileRows rows of the product by kVectors vectors of columns, all of which stay in registers.
template <class Real, int kVectors>
inline void multiply_tile(Product<Real> const& product, std::int64_t row, std::int64_t column) {
  using Vector = typename Simd<Real>::Vector;
  Vector sums[kTileRows][kVectors] = {};
  Real const* a = product.a.data + row * product.a.row_stride;
  Real const* b = product.b.data + column;
  for (std::int64_t depth = 0; depth < product.depth; ++depth, a += product.a.column_stride, b += product.b.stride) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load_vector(b + v * Simd<Real>::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      Real const factor = a[r * product.a.row_stride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * columns[v];
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

/// All rows by at most kVectors vectors of columns.
template <class Real, int kVectors = kTileVectors>
inline void multiply_columns(Product<Real> const& product, std::int64_t column, std::int64_t vectors) {
  if constexpr (kVectors > 1)
    if (vectors < kVectors) return multiply_columns<Real, kVectors - 1>(product, column, vectors);
  for (std::int64_t row = 0; row < product.rows; row += kTileRows) multiply_tile<Real, kVectors>(product, row, column);
}

template <class Real>
void multiply(Product<Real> const& product) {
  constexpr std::int64_t kLanes = Simd<Real>::kLanes;
  for (std::int64_t column = 0; column < product.columns; column += kTileVectors * kLanes) {
    std::int64_t const vectors = (product.columns - column + kLanes - 1) / kLanes;
    multiply_columns<Real>(product, column, vectors < kTileVectors ? vectors : kTileVectors);
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
