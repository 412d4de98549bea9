// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/latency_histogram.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace headway::serving {
namespace {

using namespace std::chrono_literals;

TEST(LatencyHistogram, quantiles_and_counts_are_exact_to_a_64th) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> logarithm(0, std::log(1e11));
  LatencyHistogram histogram;
  std::vector<std::int64_t> values(20'000);
  for (auto& value : values) {
    value = static_cast<std::int64_t>(std::exp(logarithm(random)));
    histogram.add(std::chrono::nanoseconds(value));
  }
  std::ranges::sort(values);
  EXPECT_EQ(histogram.count(), values.size());
  for (double const q : {0.01, 0.25, 0.5, 0.9, 0.99, 0.999}) {
    auto const exact = static_cast<double>(values[static_cast<std::size_t>(q * 20'000) - 1]);
    auto const found = static_cast<double>(histogram.quantile(q).count());
    EXPECT_GE(found, exact);
    EXPECT_LE(found, exact * (1 + 1.0 / 64) + 1) << "quantile " << q;
  }
  auto const below = [&](double limit) { return std::ranges::lower_bound(values, limit) - values.begin(); };
  for (double const limit : {100.0, 1e4, 1e6, 1e9}) {
    auto const found = histogram.count_up_to(std::chrono::nanoseconds(static_cast<std::int64_t>(limit)));
    EXPECT_LE(found, below(limit + 1));
    EXPECT_GE(found, below(limit * (1 - 1.0 / 64) - 1));
  }
}

TEST(LatencyHistogram, extremes_count_at_the_ends) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0ns);
  histogram.add(-5ns);
  EXPECT_EQ(histogram.quantile(1), 0ns);
  histogram.add(24h);
  EXPECT_GT(histogram.quantile(1), 2min);
  EXPECT_EQ(histogram.count(), 2);
}

}  // namespace
}  // namespace headway::serving
