// SPDX-License-Identifier: Apache-2.0

// plan_batches() without torch: the example of its header, and refusals. tests/python compares with a reference.

#include "headway/kernels/batch_plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

namespace headway::kernels {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers plan(BatchPlanMethod method, Numbers const& weights, std::int64_t num_ranks, std::int64_t step = 0) {
  Numbers ranks(weights.size(), -1);
  plan_batches({.method = method, .weights = weights, .num_ranks = num_ranks, .step = step, .ranks = ranks});
  return ranks;
}

TEST(BatchPlan, HasTheExampleOfItsHeader) {
  Numbers const weights{9, 1, 5, 5, 4, 2};
  EXPECT_EQ(plan(BatchPlanMethod::kFixedGreedy, weights, 2), (Numbers{0, 0, 1, 1, 0, 1}));
  EXPECT_EQ(plan(BatchPlanMethod::kFixedZigzag, weights, 2), (Numbers{0, 1, 1, 1, 0, 0}));
  EXPECT_EQ(plan(BatchPlanMethod::kVariableGreedy, weights, 2), (Numbers{0, 1, 1, 1, 0, 1}));
  EXPECT_EQ(plan(BatchPlanMethod::kVariableSegments, weights, 2), (Numbers{0, 1, 0, 1, 1, 1}));
  EXPECT_EQ(plan(BatchPlanMethod::kFixedGreedy, weights, 2, 3), (Numbers{1, 1, 0, 0, 1, 0}));
}

TEST(BatchPlan, RefusesWhatHasNoPlan) {
  std::int64_t const most = std::numeric_limits<std::int64_t>::max();
  for (auto const method : {BatchPlanMethod::kFixedGreedy, BatchPlanMethod::kFixedZigzag,
                            BatchPlanMethod::kVariableGreedy, BatchPlanMethod::kVariableSegments}) {
    EXPECT_EQ(plan(method, {most}, 2), Numbers{0});
    EXPECT_THROW(plan(method, {most, 1}, 2), std::invalid_argument);
    EXPECT_THROW(plan(method, {1, -1}, 2), std::invalid_argument);
    EXPECT_THROW(plan(method, {1}, 0), std::invalid_argument);
    EXPECT_THROW(plan(method, {1}, 1, -1), std::invalid_argument);
  }
}

}  // namespace
}  // namespace headway::kernels
