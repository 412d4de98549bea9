#pragma once

#include "hstu/cpu/simd/vector.hpp"

namespace headway::kernels::hstu {
namespace {

constexpr int kTileRows = 4, kTileVectors = 4;

/// kTileRows rows of the product by kVectors vectors of columns, all of which stay in registers.
template <class Real, int kVectors>
inline void multiply_tile(Product<Real> const& product, std::int64_t row, std::int64_t column) {
  using Vector = typename Simd<Real>::Vector;
  Vector sums[kTileRows][kVectors] = {};
  Real const* a = product.a + row * product.a_row_stride;
  Real const* b = product.b + column;
  for (std::int64_t depth = 0; depth < product.depth; ++depth, a += product.a_depth_stride, b += product.b_stride) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load_vector(b + v * Simd<Real>::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      Real const factor = a[r * product.a_row_stride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    Real* c = product.c + (row + r) * product.c_stride + column;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v, c += Simd<Real>::kLanes)
      store_vector(product.into == Into::kAdd ? load_vector(c) + sums[r][v] : sums[r][v], c);
  }
}

template <class Real, int kVectors>
inline void multiply_columns(Product<Real> const& product, std::int64_t column) {
  for (std::int64_t row = 0; row < product.rows; row += kTileRows) multiply_tile<Real, kVectors>(product, row, column);
}

template <class Real>
void multiply(Product<Real> const& product) {
  constexpr std::int64_t kLanes = Simd<Real>::kLanes;
  for (std::int64_t column = 0; column < product.columns; column += kTileVectors * kLanes) {
    std::int64_t const vectors = (product.columns - column + kLanes - 1) / kLanes;
    if (vectors >= 4)
      multiply_columns<Real, 4>(product, column);
    else if (vectors == 3)
      multiply_columns<Real, 3>(product, column);
    else if (vectors == 2)
      multiply_columns<Real, 2>(product, column);
    else
      multiply_columns<Real, 1>(product, column);
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
