// SPDX-License-Identifier: Apache-2.0
// RankBarrier: the ranks of a benchmark on one host wait for each other and gather values, through a mapped file.

#include "rank_barrier.hpp"

#include "temporary_directory.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headway::benchmarks {
namespace {

/// Ranks are threads that meet in a file of this process.
class RankBarrierTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path const file_ = directory_.path() / "barrier";
};

TEST_F(RankBarrierTest, LetsNobodyLeaveBeforeAllHaveCome) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 200;
  std::atomic<int> arrivals = 0;
  std::atomic<bool> early = false;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        RankBarrier barrier(file_, rank, kRanks, std::chrono::seconds(30));
        for (int round = 1; round <= kRounds; ++round) {
          ++arrivals;
          barrier.wait();
          if (arrivals < round * kRanks) early = true;
          barrier.wait();
        }
      });
    }
  }
  EXPECT_FALSE(early);
  EXPECT_EQ(arrivals, kRanks * kRounds);
}

TEST_F(RankBarrierTest, GathersTheValuesOfAllRanksInTheirOrder) {
  std::vector<std::vector<double>> seen_by_1;
  std::jthread other([&] {
    RankBarrier barrier(file_, 1, 2, std::chrono::seconds(30));
    seen_by_1 = barrier.gather(std::vector{3.0, 4.0});
  });
  RankBarrier barrier(file_, 0, 2, std::chrono::seconds(30));
  auto const seen_by_0 = barrier.gather(std::vector{1.0, 2.0});
  other.join();
  std::vector<std::vector<double>> const expected{{1.0, 3.0}, {2.0, 4.0}};  // Indexed by value, then by rank.
  EXPECT_EQ(seen_by_0, expected);
  EXPECT_EQ(seen_by_1, expected);
}

TEST_F(RankBarrierTest, EndsWithAnErrorWhenAnotherRankFailed) {
  RankBarrier barrier(file_, 0, 2, std::chrono::seconds(30));
  RankBarrier(file_, 1, 2, std::chrono::seconds(30)).fail();
  EXPECT_THROW(barrier.wait(), std::runtime_error);
}

TEST_F(RankBarrierTest, EndsWithAnErrorWhenTheTimeIsOver) {
  RankBarrier barrier(file_, 0, 2, std::chrono::seconds(0));
  EXPECT_THROW(barrier.wait(), std::runtime_error);
}

}  // namespace
}  // namespace headway::benchmarks
