// SPDX-License-Identifier: Apache-2.0

// SiLU and its slope on vectors, compiled per instruction set.
//
// exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2, where a short series is enough. Adding kRounder
// rounds to an integer and leaves it in the low bits of the sum. Example: x = 1: 1 / ln 2 = 1.44, n = 1, r = 0.307,
// the result is 2 * exp(0.307) = 2.718. ln 2 is subtracted in two parts, the first with few bits, so that n ln 2 is
// exact.

#pragma once

#include "hstu/cpu/simd/vector.hpp"

namespace headway::kernels::hstu {
namespace {

/// exp(x), with an error of about one unit in the last place. |x| is clamped to kMaxExponent. With x = n ln 2 + r, the
/// result is 2^n, made from exponent bits, times the series of exp(r).
template <class Real>
inline typename Simd<Real>::Vector exponential(typename Simd<Real>::Vector x) {
  using S = Simd<Real>;
  using Vector = typename S::Vector;
  using Integers = typename S::Integers;
  Vector const most = Vector{} + S::kMaxExponent;
  x = x > most ? most : x;
  x = x < -most ? -most : x;
  Vector const shifted = x * Real(1.44269504088896340736) + S::kRounder;
  Vector const n = shifted - S::kRounder;
  Vector const r = (x - n * S::kLn2High) - n * S::kLn2Low;

  constexpr Real kInverseFactorials[] = {Real(1),
                                         Real(1),
                                         Real(1. / 2),
                                         Real(1. / 6),
                                         Real(1. / 24),
                                         Real(1. / 120),
                                         Real(1. / 720),
                                         Real(1. / 5040),
                                         Real(1. / 40320),
                                         Real(1. / 362880),
                                         Real(1. / 3628800),
                                         Real(1. / 39916800),
                                         Real(1. / 479001600),
                                         Real(1. / 6227020800)};
  Vector series = Vector{} + kInverseFactorials[S::kTerms - 1];
#pragma GCC unroll 16
  for (int term = S::kTerms - 2; term >= 0; --term) series = series * r + kInverseFactorials[term];

  // The low bits of `shifted` are n; the shift drops the bits above.
  Integers const power = (same_bits<Integers>(shifted) << S::kMantissaBits) + (S::kExponentBias << S::kMantissaBits);
  return series * same_bits<Vector>(power);
}

/// 1 / (1 + exp(-x)). Exactly 0 where exp(-x) would be clamped, so that SiLU of very negative numbers is 0.
template <class Real>
inline typename Simd<Real>::Vector sigmoid(typename Simd<Real>::Vector const& x) {
  using Vector = typename Simd<Real>::Vector;
  return x < -(Vector{} + Simd<Real>::kMaxExponent) ? Vector{} : Real(1) / (Real(1) + exponential<Real>(-x));
}

/// Mask vector: all bits of a lane are set if its query sees the key. Comparisons of vectors give all ones or all zeros
/// per lane, so & and | combine them without branches.
template <class Real>
inline typename Simd<Real>::Integers is_seen(SeenKeys<Real> const& seen, std::int64_t query, MaskIndex<Real> key) {
  auto const begin = load_integers<Real>(seen.begin + query), end = load_integers<Real>(seen.end + query);
  auto const self = load_integers<Real>(seen.self + query);
  return ((begin <= key) & (key < end)) | (self == key);
}

/// Calls visit(index of the first score, scores with bias and alpha, mask of visible lanes) for each vector of a block.
template <class Real, class Visit>
inline void for_each_vector(ScoreBlock<Real> const& block, Visit visit) {
  using Vector = typename Simd<Real>::Vector;
  using Integers = typename Simd<Real>::Integers;
  for (std::int64_t row = 0; row < block.num_keys; ++row) {
    MaskIndex<Real> const key = block.first_key + static_cast<MaskIndex<Real>>(row);
    for (std::int64_t query = 0; query < block.num_queries; query += Simd<Real>::kLanes) {
      std::int64_t const at = row * kBlockSize + query;
      Vector x = load_vector(block.s + at);
      if (block.bias != nullptr) x += load_vector(block.bias + at);
      visit(at, x * block.alpha, block.seen != nullptr ? is_seen(*block.seen, query, key) : ~Integers{});
    }
  }
}

/// BlockKernels::compute_p(): replaces scores by attention weights.
template <class Real>
void compute_p(ScoreBlock<Real> const& block) {
  using Vector = typename Simd<Real>::Vector;
  using Integers = typename Simd<Real>::Integers;
  for_each_vector(block, [&](std::int64_t at, Vector const& x, Integers const& seen) {
    Vector const weight = x * sigmoid<Real>(x) * block.scale;
    store_vector(seen ? weight : Vector{}, block.s + at);
  });
}

/// BlockKernels::compute_p_and_ds(): SiLU'(x) = s (1 + x (1 - s)) with s = sigmoid(x).
template <class Real>
void compute_p_and_ds(ScoreBlock<Real> const& block, Real* gradients) {
  using Vector = typename Simd<Real>::Vector;
  using Integers = typename Simd<Real>::Integers;
  Real const scale_of_gradient = block.scale * block.alpha;
  for_each_vector(block, [&](std::int64_t at, Vector const& x, Integers const& seen) {
    Vector const s = sigmoid<Real>(x);
    Vector const weight = x * s * block.scale;
    Vector const slope = s * (Real(1) + x * (Real(1) - s)) * scale_of_gradient;
    store_vector(seen ? weight : Vector{}, block.s + at);
    store_vector(seen ? load_vector(gradients + at) * slope : Vector{}, gradients + at);
  });
}

}  // namespace
}  // namespace headway::kernels::hstu
