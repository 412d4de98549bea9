// SPDX-License-Identifier: Apache-2.0

// Comparison of the results of attention kernels with the reference.

#pragma once

#include "attention_case.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headway::kernels {

/// Results of a forward and a backward pass for a case.
struct AttentionOutcome {
  std::vector<float> out, grad_query, grad_key, grad_value, grad_position_weights, grad_time_weights;

  bool operator==(AttentionOutcome const&) const = default;
};

/// Upper bounds on relative_error().
struct AttentionTolerance {
  double out = 0, gradients = 0;
};

/// Expects all results to be near those of AttentionOracle.
inline void expect_near_oracle(AttentionOutcome const& outcome, AttentionCase const& of,
                               AttentionTensors const& tensors, AttentionTolerance const& tolerance) {
  AttentionOracle const oracle(of, tensors);
  AttentionGradients const expected = oracle.gradients();
  EXPECT_LT(relative_error(outcome.out, oracle.out()), tolerance.out);
  EXPECT_LT(relative_error(outcome.grad_query, expected.query), tolerance.gradients);
  EXPECT_LT(relative_error(outcome.grad_key, expected.key), tolerance.gradients);
  EXPECT_LT(relative_error(outcome.grad_value, expected.value), tolerance.gradients);
  EXPECT_LT(relative_error(outcome.grad_position_weights, expected.position_weights), tolerance.gradients);
  EXPECT_LT(relative_error(outcome.grad_time_weights, expected.time_weights), tolerance.gradients);
}

}  // namespace headway::kernels
