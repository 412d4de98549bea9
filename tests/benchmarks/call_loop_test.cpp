// SPDX-License-Identifier: Apache-2.0
// Loop of the all-to-all benchmark: it keeps lag + 1 calls in flight, each on a set of buffers of its own, and checks
// the results. Calls in flight complete in bursts, so durations are averaged over lag + 1 calls.

#include "call_loop.hpp"

#include "sample_summary.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <stdexcept>
#include <vector>

namespace headway::benchmarks {
namespace {

/// Delivers nothing and records the calls of the loop.
class RecordingExchange final : public Exchange {
 public:
  void use(std::span<CallBuffers>) override {}
  void start(std::size_t set) override {
    for (std::size_t const pending : pending_) EXPECT_NE(pending, set) << "memory of a pending call was used again";
    pending_.push_back(set);
    most_pending = std::max(most_pending, pending_.size());
    ++started;
  }
  void finish_oldest() override {
    ASSERT_FALSE(pending_.empty());
    pending_.pop_front();
  }
  std::uint64_t reserved_bytes() override { return 0; }
  [[nodiscard]] bool is_idle() const { return pending_.empty(); }

  std::size_t started = 0;
  std::size_t most_pending = 0;

 private:
  std::deque<std::size_t> pending_;
};

TEST(CallLoop, KeepsLagPlusOneCallsInFlightAndFinishesAll) {
  for (int const lag : {0, 1, 4}) {
    RecordingExchange exchange;
    auto const durations_s = time_calls(exchange, lag, 25);
    EXPECT_EQ(durations_s.size(), 25u);
    EXPECT_EQ(exchange.most_pending, static_cast<std::size_t>(lag) + 1);
    EXPECT_EQ(exchange.started, 25u + static_cast<std::size_t>(lag));
    EXPECT_TRUE(exchange.is_idle());
  }
}

TEST(CallLoop, FindsThatASystemDeliversNothing) {
  RecordingExchange exchange;
  std::vector<CallBuffers> sets;
  sets.emplace_back(Split::kEven, 64, 0, 2);
  EXPECT_THROW(exchange_and_check(exchange, sets, 0), std::runtime_error);
}

TEST(CallLoop, AveragesBurstsOnlyWhereCallsAreInFlight) {
  std::vector<double> const bursts{0, 0, 3, 0, 0, 3, 0, 0, 3, 0, 0, 3, 0, 0, 3};
  EXPECT_EQ(average_bursts(bursts, 0), bursts);
  EXPECT_EQ(average_bursts(bursts, 2), (std::vector<double>{1, 1, 1, 1, 1}));
}

TEST(SampleSummary, HasQuantilesBetweenSamples) {
  auto const summary = summarize({5, 1, 4, 2, 3});
  EXPECT_DOUBLE_EQ(summary.median_s, 3);
  EXPECT_DOUBLE_EQ(summary.p5_s, 1.2);
  EXPECT_DOUBLE_EQ(summary.p95_s, 4.8);
  EXPECT_DOUBLE_EQ(summary.mean_s, 3);
  EXPECT_EQ(summary.samples, 5u);
}

}  // namespace
}  // namespace headway::benchmarks
