// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gated normalisation of a row in buffers, compiled per instruction set.
//
// Idea: u is the gate. With z = x (or x SiLU(u) for kGateThenNorm), c = (z - mean) / deviation and
// n = c * weight + bias, the output is n, n SiLU(u), or three parts side by side (GateForm). Backward, with g the
// gradient of n and h = g * weight:
//   grad_z = (h - mean(h) - c * mean(h * c)) / deviation; for RMSNorm without mean(h).
// The gradients of weight and bias are sums of g * c and g over rows.
//
// Example: kRms, z = 3 4, eps 0: deviation = sqrt((9 + 16) / 2) = 3.54, c = 0.85 1.13.
//
// Invariants: numbers behind the last column are padding; they never enter a mean. Each row has a fixed order of sums,
// which depends on the instruction set.
// Complexity: three passes over the row forward (two for RMSNorm, and one more for a gate), two backward.
// Source: LayerNorm: Ba et al. 2016; RMSNorm: Zhang and Sennrich 2019.

#include "hstu/cpu/simd/silu.hpp"
#include "layer/cpu/row_kernels.hpp"

#include <cstdint>

namespace headway::kernels::layer {
namespace {

using hstu::load_vector;
using hstu::sigmoid;
using hstu::Simd;
using hstu::store_vector;

template <class Real>
using VectorOf = typename Simd<Real>::Vector;

/// Calls visit(i) with the index of the first element of each vector.
template <class Real, class Visit>
inline void for_each_vector(std::int64_t size, Visit visit) {
  for (std::int64_t i = 0; i < size; i += Simd<Real>::kLanes) visit(i);
}

/// Sum over lanes, in order.
template <class Real>
inline Real sum_of(VectorOf<Real> const& vector) {
  Real sum = 0;
  for (int lane = 0; lane < Simd<Real>::kLanes; ++lane) sum += vector[lane];
  return sum;
}

/// Vector of `from`, or `other` in all lanes if it is null.
template <class Real>
inline VectorOf<Real> load_or(Real const* from, std::int64_t i, Real other) {
  return from == nullptr ? VectorOf<Real>{} + other : load_vector(from + i);
}

template <class Real>
void activate(std::int64_t size, Real* x) {
  for_each_vector<Real>(size, [&](std::int64_t i) {
    auto const value = load_vector(x + i);
    store_vector(value * sigmoid<Real>(value), x + i);
  });
}

/// SiLU'(x) for s = sigmoid(x). The derivative of x s(x) is s + x s (1 - s).
template <class Real>
inline VectorOf<Real> slope_of(VectorOf<Real> const& x, VectorOf<Real> const& s) {
  return s * (Real(1) + x * (Real(1) - s));
}

template <class Real>
void activate_backward(std::int64_t size, Real const* x, Real* grad) {
  for_each_vector<Real>(size, [&](std::int64_t i) {
    auto const value = load_vector(x + i);
    store_vector(load_vector(grad + i) * slope_of<Real>(value, sigmoid<Real>(value)), grad + i);
  });
}

template <class Real>
void add(std::int64_t size, Real const* from, Real* to) {
  for_each_vector<Real>(size,
                        [&](std::int64_t i) { store_vector(load_vector(from + i) + load_vector(to + i), to + i); });
}

/// Computes mean and 1 / deviation of a row from its vectors z(i).
template <class Real, class Z>
inline void measure(NormRow<Real>& row, std::int64_t size, Z z) {
  auto const columns = static_cast<Real>(row.num_columns);
  row.mean = 0;
  if (row.norm == NormKind::kLayer) {
    VectorOf<Real> sum{};
    for_each_vector<Real>(size, [&](std::int64_t i) { sum += z(i); });
    row.mean = sum_of<Real>(sum) / columns;
  }
  // Zeros behind the last column must not enter the sum of squares.
  std::int64_t const whole = row.num_columns / Simd<Real>::kLanes * Simd<Real>::kLanes;
  VectorOf<Real> squares{};
  for_each_vector<Real>(whole, [&](std::int64_t i) {
    VectorOf<Real> const centred = z(i) - row.mean;
    squares += centred * centred;
  });
  Real sum = sum_of<Real>(squares);
  if (whole < row.num_columns) {
    VectorOf<Real> const centred = z(whole) - row.mean;
    for (std::int64_t lane = 0; lane < row.num_columns - whole; ++lane) sum += centred[lane] * centred[lane];
  }
  row.inverse = Real(1) / static_cast<Real>(__builtin_sqrt(sum / columns + row.eps));
}

template <class Real>
void norm(NormRow<Real>& row) {
  using Vector = VectorOf<Real>;
  std::int64_t const size = hstu::padded(row.num_columns);
  bool const is_gated_before = row.form == GateForm::kGateThenNorm;
  if (row.form != GateForm::kNone) activate(size, row.gate);
  auto const z = [&](std::int64_t i) -> Vector {
    return is_gated_before ? load_vector(row.x + i) * load_vector(row.gate + i) : load_vector(row.x + i);
  };
  measure(row, size, z);
  for_each_vector<Real>(size, [&](std::int64_t i) {
    Vector const normed =
        (z(i) - row.mean) * row.inverse * load_or(row.weight, i, Real(1)) + load_or(row.bias, i, Real(0));
    if (row.form == GateForm::kNone || is_gated_before) return store_vector(normed, row.parts[0] + i);
    Vector const s = load_vector(row.gate + i);
    if (row.form == GateForm::kNormThenGate) return store_vector(normed * s, row.parts[0] + i);
    store_vector(s, row.parts[0] + i);
    store_vector(row.form == GateForm::kConcat ? load_vector(row.x + i) : normed, row.parts[1] + i);
    store_vector(normed * s, row.parts[2] + i);
  });
}

/// Values of one vector of a row from which its gradients are computed.
template <class Real>
struct NormGradient {
  VectorOf<Real> x, u{}, sigmoid_of_u{}, s{};
  VectorOf<Real> centred;      ///< (z - mean) / deviation.
  VectorOf<Real> normed;       ///< `centred` with weight and bias.
  VectorOf<Real> grad_normed;  ///< Gradient of `normed`.

  NormGradient(NormRow<Real> const& row, std::int64_t i) : x(load_vector(row.x + i)) {
    if (row.form != GateForm::kNone) {
      u = load_vector(row.gate + i);
      sigmoid_of_u = sigmoid<Real>(u);
      s = u * sigmoid_of_u;
    }
    centred = ((row.form == GateForm::kGateThenNorm ? x * s : x) - row.mean) * row.inverse;
    if (i + Simd<Real>::kLanes > row.num_columns) clear_behind(row.num_columns - i);
    normed = centred * load_or(row.weight, i, Real(1)) + load_or(row.bias, i, Real(0));
    // The norm's output reaches the last part only (times the gate, if there is one), and for kConcatNorm also the
    // middle one.
    bool const is_one = row.form == GateForm::kNone || row.form == GateForm::kGateThenNorm;
    VectorOf<Real> const last = load_vector(row.parts[num_parts(row.form) - 1] + i);
    grad_normed = is_one ? last : last * s;
    if (row.form == GateForm::kConcatNorm) grad_normed += load_vector(row.parts[1] + i);
  }

 private:
  /// Clears the lanes behind the last column. Without this, a large mean could make them infinite.
  void clear_behind(std::int64_t num_lanes) {
    for (std::int64_t lane = 0; lane < Simd<Real>::kLanes; ++lane) {
      if (lane >= num_lanes) centred[lane] = 0;
    }
  }
};

template <class Real>
void norm_backward(NormRow<Real>& row) {
  using Vector = VectorOf<Real>;
  std::int64_t const size = hstu::padded(row.num_columns);
  // Gradients behind the last column are zero, so padding adds nothing to these sums.
  Vector sum{}, product_sum{};
  for_each_vector<Real>(size, [&](std::int64_t i) {
    NormGradient<Real> const at(row, i);
    if (row.weight_sums != nullptr)
      store_vector(load_vector(row.weight_sums + i) + at.grad_normed * at.centred, row.weight_sums + i);
    if (row.bias_sums != nullptr) store_vector(load_vector(row.bias_sums + i) + at.grad_normed, row.bias_sums + i);
    Vector const grad = at.grad_normed * load_or(row.weight, i, Real(1));
    sum += grad;
    product_sum += grad * at.centred;
  });
  auto const columns = static_cast<Real>(row.num_columns);
  Real const mean = row.norm == NormKind::kLayer ? sum_of<Real>(sum) / columns : Real(0);
  Real const product_mean = sum_of<Real>(product_sum) / columns;
  for_each_vector<Real>(size, [&](std::int64_t i) {
    NormGradient<Real> const at(row, i);
    Vector const grad = at.grad_normed * load_or(row.weight, i, Real(1));
    Vector const grad_z = (grad - mean - at.centred * product_mean) * row.inverse;
    Vector grad_x = grad_z, grad_s{};
    if (row.form == GateForm::kGateThenNorm) {
      grad_x = grad_z * at.s;
      grad_s = grad_z * at.x;
    } else if (row.form != GateForm::kNone) {
      grad_s = load_vector(row.parts[num_parts(row.form) - 1] + i) * at.normed;
      if (num_parts(row.form) == 3) grad_s += load_vector(row.parts[0] + i);
    }
    if (row.form == GateForm::kConcat) grad_x += load_vector(row.parts[1] + i);
    store_vector(grad_x, row.x + i);
    if (row.form != GateForm::kNone) store_vector(grad_s * slope_of<Real>(at.u, at.sigmoid_of_u), row.gate + i);
  });
}

template <class Real>
constexpr RowKernels<Real> row_table_of(char const* instruction_set) {
  return {.instruction_set = instruction_set,
          .activate = activate<Real>,
          .activate_backward = activate_backward<Real>,
          .add = add<Real>,
          .norm = norm<Real>,
          .norm_backward = norm_backward<Real>};
}

}  // namespace
}  // namespace headway::kernels::layer
