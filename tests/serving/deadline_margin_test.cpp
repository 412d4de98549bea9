// SPDX-License-Identifier: Apache-2.0

#include "deadline_margin.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>

namespace headway::serving {
namespace {

/// Ends batches of 8 requests, whose times over the expected ones are drawn. Returns the share that took longer than
/// the factor allowed.
template <class Draw>
double slow_share(DeadlineMargin& margin, int num_batches, Draw draw) {
  std::size_t num_slow = 0;
  for (int batch = 0; batch < num_batches; ++batch) {
    std::size_t of_batch = 0;
    for (int request = 0; request < 8; ++request) of_batch += draw() > margin.factor() ? 1U : 0U;
    margin.add_batch(of_batch, 8);
    num_slow += of_batch;
  }
  return static_cast<double>(num_slow) / (8.0 * num_batches);
}

TEST(DeadlineMargin, few_requests_take_longer_than_allowed_whatever_the_spread_of_times) {
  std::mt19937 random(1);
  for (double const spread : {0.1, 0.3, 0.6}) {
    DeadlineMargin margin;
    std::lognormal_distribution<double> times(0, spread);
    auto const draw = [&] { return times(random); };
    static_cast<void>(slow_share(margin, 20'000, draw));
    EXPECT_LT(slow_share(margin, 20'000, draw), 2 * DeadlineMargin::kSlow) << spread;
    EXPECT_LT(margin.factor(), DeadlineMargin::kMost) << spread;
  }
}

TEST(DeadlineMargin, it_goes_back_after_a_stall) {
  DeadlineMargin margin;
  for (int i = 0; i < 100; ++i) margin.add_batch(8, 8);
  EXPECT_EQ(margin.factor(), DeadlineMargin::kMost);
  EXPECT_EQ(slow_share(margin, 6000, [] { return 1.0; }), 0);
  EXPECT_EQ(margin.factor(), DeadlineMargin::kLeast);
}

TEST(DeadlineMargin, requests_that_are_late_in_the_queue_count_with_the_next_batch) {
  DeadlineMargin of_batch, of_queue;
  of_batch.add_batch(4, 8);
  for (int i = 0; i < 4; ++i) of_queue.add_late(1);
  of_queue.add_batch(0, 4);
  EXPECT_EQ(of_queue.factor(), of_batch.factor());
}

TEST(DeadlineMargin, an_end_without_requests_says_nothing) {
  DeadlineMargin margin;
  auto const before = margin.factor();
  margin.add_batch(0, 0);
  EXPECT_EQ(margin.factor(), before);
}

}  // namespace
}  // namespace headway::serving
