// SPDX-License-Identifier: Apache-2.0

// RowOptimizer against values computed by hand. tests/python compares whole runs with torch.optim.

#include "headway/kernels/row_optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

namespace headway::kernels {
namespace {

using Values = std::vector<float>;

/// Row of a table with its optimizer state: per column, and the scalar of row-wise optimizers.
struct Row {
  Values weights;
  Values state{};
  float row_state = 0;

  void update(RowOptimizer const& optimizer, OptimizerStep const& step, Values const& gradient) {
    state.resize(optimizer.state_size(weights.size()), optimizer.initial_state());
    optimizer.update(optimizer.factors(step), weights, state, row_state, gradient);
  }
};

void expect_near(Values const& values, Values const& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-6) << "column " << i;
}

TEST(RowOptimizer, SgdGoesAgainstTheGradient) {
  Row row{.weights = {1, -2}};
  row.update(RowOptimizer({.kind = OptimizerKind::kSgd}), {.learning_rate = 0.5}, {2, 4});
  expect_near(row.weights, {0, -4});
}

TEST(RowOptimizer, L2AddsWeightsToTheGradientAndDecoupledDecayShrinksThem) {
  Row l2{.weights = {1}}, decoupled{.weights = {1}};
  l2.update(RowOptimizer({.kind = OptimizerKind::kAdagrad, .epsilon = 0, .weight_decay = 0.5}), {.learning_rate = 0.25},
            {0});
  expect_near(l2.weights, {0.75});  // The gradient is 0.5 and the accumulator 0.25, so the step is the rate.
  decoupled.update(
      RowOptimizer(
          {.kind = OptimizerKind::kAdagrad, .epsilon = 1e-8, .weight_decay = 0.5, .decay = WeightDecay::kDecoupled}),
      {.learning_rate = 0.25}, {0});
  expect_near(decoupled.weights, {0.875});
}

TEST(RowOptimizer, AdagradDividesByTheRootOfAllSquares) {
  RowOptimizer const adagrad({.kind = OptimizerKind::kAdagrad, .epsilon = 0, .initial_accumulator = 7});
  Row row{.weights = {0, 0}};
  row.update(adagrad, {.learning_rate = 1}, {3, -3});
  expect_near(row.weights, {-0.75, 0.75});  // 3 / sqrt(7 + 9)
  row.update(adagrad, {.learning_rate = 1}, {3, 0});
  expect_near(row.weights, {-1.35F, 0.75});  // 3 / sqrt(7 + 9 + 9)
}

TEST(RowOptimizer, RowWiseAdagradHasOneAccumulatorForTheMeanOfSquares) {
  Row row{.weights = {0, 0}};
  RowOptimizer const adagrad({.kind = OptimizerKind::kRowWiseAdagrad, .epsilon = 0});
  row.update(adagrad, {.learning_rate = 1}, {1, 7});
  EXPECT_TRUE(row.state.empty());
  EXPECT_FLOAT_EQ(row.row_state, 25);
  expect_near(row.weights, {-0.2F, -1.4F});
}

TEST(RowOptimizer, TheFirstStepOfAdamHasTheLengthOfTheRateWhateverTheBetas) {
  Row row{.weights = {0, 0}};
  row.update(RowOptimizer({.kind = OptimizerKind::kAdam, .epsilon = 0, .beta1 = 0.7, .beta2 = 0.6}),
             {.learning_rate = 0.5}, {1e-3F, -40});
  expect_near(row.weights, {-0.5, 0.5});
}

TEST(RowOptimizer, BiasIsCorrectedByTheStepThatIsGiven) {
  Row row{.weights = {0}};
  row.update(RowOptimizer({.kind = OptimizerKind::kAdam, .epsilon = 0, .beta1 = 0.5, .beta2 = 0.75}),
             {.learning_rate = 1, .number = 2}, {8});
  // Moments 4 and 16; corrected 4 / (1 - 1/4) and 16 / (1 - 9/16).
  expect_near(row.weights, {-(4 / 0.75F) / std::sqrt(16 / 0.4375F)});
}

TEST(RowOptimizer, RowWiseAdamHasOneSecondMoment) {
  Row row{.weights = {0, 0}};
  row.update(RowOptimizer({.kind = OptimizerKind::kRowWiseAdam, .epsilon = 0}), {.learning_rate = 1}, {1, 7});
  expect_near(row.weights, {-0.2F, -1.4F});
  EXPECT_EQ(row.state.size(), 2U);           // First moments.
  EXPECT_NEAR(row.row_state, 0.025F, 1e-6);  // (1 - beta2) times the mean of squares: 0.001 * 25.
}

TEST(RowOptimizer, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(RowOptimizer({.epsilon = -1}), std::invalid_argument);
  EXPECT_THROW(RowOptimizer({.kind = OptimizerKind::kAdam, .beta1 = 1}), std::invalid_argument);
  EXPECT_THROW(RowOptimizer({.kind = OptimizerKind::kAdam, .beta2 = -0.1}), std::invalid_argument);
  EXPECT_THROW(RowOptimizer({.weight_decay = std::nan("")}), std::invalid_argument);
  EXPECT_THROW(RowOptimizer({.kind = OptimizerKind::kAdam, .initial_accumulator = 1}), std::invalid_argument);
  RowOptimizer const sgd{OptimizerOptions{}};
  EXPECT_THROW(static_cast<void>(sgd.factors({.learning_rate = 1, .number = 0})), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(sgd.factors({.learning_rate = std::numeric_limits<double>::infinity()})),
               std::invalid_argument);
}

}  // namespace
}  // namespace headway::kernels
