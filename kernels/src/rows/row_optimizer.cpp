// SPDX-License-Identifier: Apache-2.0

// Optimizers of embedding rows: options, factors of a step, and dispatch to the vector functions. The formulas are in
// weight_update.hpp, the loops in simd/vector_functions.hpp.
//
// Factors move everything that is equal for all rows of a step out of the loops. Example: Adam, step 1, rate 0.1,
// beta1 0.9: bias correction 1 is 1 - 0.9 = 0.1, so rate_of_moment is 1. They are computed in double and rounded
// once.

#include "headway/kernels/row_optimizer.hpp"

#include <cassert>
#include <cmath>
#include <stdexcept>
#include <string>

namespace headway::kernels {

namespace {

void expect_in_range(bool is_in_range, char const* name, double value) {
  if (!is_in_range)
    throw std::invalid_argument(std::string("an optimizer cannot have ") + name + " = " + std::to_string(value));
}

bool is_adam(OptimizerKind kind) { return kind == OptimizerKind::kAdam || kind == OptimizerKind::kRowWiseAdam; }

}  // namespace

RowOptimizer::RowOptimizer(OptimizerOptions const& options) : options_(options) {
  auto const is_from_0 = [](double value) { return std::isfinite(value) && value >= 0; };
  expect_in_range(is_from_0(options.epsilon), "epsilon", options.epsilon);
  expect_in_range(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1);
  expect_in_range(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2);
  expect_in_range(is_from_0(options.weight_decay), "weight_decay", options.weight_decay);
  bool const accumulates = options.kind == OptimizerKind::kAdagrad || options.kind == OptimizerKind::kRowWiseAdagrad;
  expect_in_range(accumulates ? is_from_0(options.initial_accumulator) : options.initial_accumulator == 0,
                  "initial_accumulator", options.initial_accumulator);
}

std::size_t RowOptimizer::state_size(std::size_t dim) const {
  switch (options_.kind) {
    case OptimizerKind::kAdam:
      return 2 * dim;
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRowWiseAdam:
      return dim;
    case OptimizerKind::kSgd:
    case OptimizerKind::kRowWiseAdagrad:
      break;
  }
  return 0;
}

bool RowOptimizer::is_row_wise() const {
  return options_.kind == OptimizerKind::kRowWiseAdagrad || options_.kind == OptimizerKind::kRowWiseAdam;
}

UpdateFactors RowOptimizer::factors(OptimizerStep const& step) const {
  expect_in_range(std::isfinite(step.learning_rate), "a learning rate", step.learning_rate);
  expect_in_range(step.number >= 1, "a step", 0);
  auto const number = static_cast<double>(step.number);
  double const bias1 = is_adam(options_.kind) ? 1 - std::pow(options_.beta1, number) : 1;
  double const bias2 = is_adam(options_.kind) ? 1 - std::pow(options_.beta2, number) : 1;
  bool const is_decoupled = options_.decay == WeightDecay::kDecoupled;
  return {.rate = static_cast<float>(step.learning_rate),
          .rate_of_moment = static_cast<float>(step.learning_rate / bias1),
          .shrinkage = static_cast<float>(is_decoupled ? 1 - step.learning_rate * options_.weight_decay : 1),
          .inverse_root_of_bias = static_cast<float>(1 / std::sqrt(bias2)),
          .l2 = static_cast<float>(is_decoupled ? 0 : options_.weight_decay),
          .epsilon = static_cast<float>(options_.epsilon),
          .beta2 = static_cast<float>(options_.beta2),
          .rest1 = static_cast<float>(1 - options_.beta1),
          .rest2 = static_cast<float>(1 - options_.beta2)};
}

void RowOptimizer::update(UpdateFactors const& by, std::span<float> weights, std::span<float> state, float& row_state,
                          std::span<float const> gradient) const {
  std::size_t const dim = weights.size();
  assert(gradient.size() == dim && state.size() == state_size(dim) && "a row has the sizes of its optimizer");
  kernels_->update[static_cast<std::size_t>(options_.kind)](by, dim, weights.data(), state.data(), row_state,
                                                            gradient.data());
}

}  // namespace headway::kernels
