// SPDX-License-Identifier: Apache-2.0

// Update rules of optimizers for one weight: shared by the vector loops on the CPU and by the table kernels on GPUs.
//
// All rules follow torch.optim. Example: Adagrad, rate 0.1, sum 0, gradient 2: the sum becomes 4, and the weight
// moves by -0.1 * 2 / (2 + epsilon), about -0.1.
//
// A row-wise rule replaces the per-weight sum of squares by one number per row, the mean of squares over its columns.
// It saves dim - 1 floats of state per row, and it needs the whole gradient of a row before the first weight can
// change.

#pragma once

#include "headway/kernels/host_device.hpp"

#include <cmath>

namespace headway::kernels {

/// Factors of an optimizer step, precomputed once per step from options and step number.
struct UpdateFactors {
  /// rate_of_moment: rate / bias correction 1. shrinkage: 1 - rate * decay, or 1 if decay is L2. l2: decay if it is L2,
  /// else 0. inverse_root_of_bias: 1 / sqrt(bias correction 2). Bias corrections are those of Adam; other rules have 1.
  float rate = 0, rate_of_moment = 0, shrinkage = 1, inverse_root_of_bias = 1;
  float l2 = 0, epsilon = 0, beta2 = 0, rest1 = 0, rest2 = 0;  ///< rest1 = 1 - beta1, rest2 = 1 - beta2.
};

/// Formulas of torch.optim for one weight. The update functions take a `gradient` that already has L2 decay added.
HEADWAY_ALWAYS_INLINE float with_decay(UpdateFactors const& by, float gradient, float weight) {
  return gradient + by.l2 * weight;
}

/// Rule: w = w * shrinkage - rate * g.
HEADWAY_ALWAYS_INLINE void update_sgd(UpdateFactors const& by, float& weight, float gradient) {
  weight = weight * by.shrinkage - by.rate * gradient;
}

/// Rule: sum += g^2; w = w * shrinkage - rate * g / (sqrt(sum) + epsilon).
HEADWAY_ALWAYS_INLINE void update_adagrad(UpdateFactors const& by, float& weight, float& sum, float gradient) {
  sum += gradient * gradient;
  weight = weight * by.shrinkage - by.rate * gradient / (sqrtf(sum) + by.epsilon);
}

/// Rule: m += (g - m) (1 - beta1); v = beta2 v + (1 - beta2) g^2; w = w * shrinkage - rate' * m / (sqrt(v / c2) +
/// epsilon), with bias corrections in rate' and c2.
HEADWAY_ALWAYS_INLINE void update_adam(UpdateFactors const& by, float& weight, float& first, float& second,
                                       float gradient) {
  first += (gradient - first) * by.rest1;
  second = by.beta2 * second + by.rest2 * gradient * gradient;
  float const divisor = sqrtf(second) * by.inverse_root_of_bias + by.epsilon;
  weight = weight * by.shrinkage - by.rate_of_moment * first / divisor;
}

/// Row-wise rules: the row's single state gives the rate of all its weights.
HEADWAY_ALWAYS_INLINE float row_rate_of_adagrad(UpdateFactors const& by, float& sum, float mean_of_squares) {
  sum += mean_of_squares;
  return by.rate / (sqrtf(sum) + by.epsilon);
}

HEADWAY_ALWAYS_INLINE void update_by_row_rate(UpdateFactors const& by, float row_rate, float& weight, float gradient) {
  weight = weight * by.shrinkage - row_rate * gradient;
}

HEADWAY_ALWAYS_INLINE float row_rate_of_adam(UpdateFactors const& by, float& second, float mean_of_squares) {
  second = by.beta2 * second + by.rest2 * mean_of_squares;
  return by.rate_of_moment / (sqrtf(second) * by.inverse_root_of_bias + by.epsilon);
}

HEADWAY_ALWAYS_INLINE void update_moment_by_row_rate(UpdateFactors const& by, float row_rate, float& weight,
                                                     float& first, float gradient) {
  first += (gradient - first) * by.rest1;
  weight = weight * by.shrinkage - row_rate * first;
}

}  // namespace headway::kernels
