// SPDX-License-Identifier: Apache-2.0
#include "failing_operation.hpp"
#include "headway/comm/group.hpp"
#include "random_rounds.hpp"
#include "started_rank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

/// A rank is stopped (SIGSTOP) in a stream of exchanges. Its connections stay open, and it does nothing.
class StopTest : public testing::TestWithParam<char const*> {
 protected:
  static void expect_failure(StartedRank& rank, std::optional<std::string> const& line) {
    if (!line) {
      ADD_FAILURE() << "hangs or ended without a word";
      rank.kill();
      return;
    }
    EXPECT_TRUE(line->starts_with("failed: ")) << *line;
  }
};

TEST_P(StopTest, AStopShorterThanTheTimeoutFailsNothing) {
  RandomRounds::run(2, [](RandomRounds::Random& random) {
    RankWork work = draw_work(random, GetParam());
    work.timeout = milliseconds(4000);
    auto const stopped = static_cast<int>(draw(random, 0, static_cast<std::uint64_t>(work.size) - 1));
    auto const delay = draw_delay(random, milliseconds(0), milliseconds(20));
    auto const stop = draw_delay(random, milliseconds(1), work.timeout / 3);
    SCOPED_TRACE(testing::Message() << "rank " << stopped << " stopped for " << stop.count() << " us, " << work);
    StartedGroup ranks(work);
    ASSERT_TRUE(ranks.is_exchanging());
    std::this_thread::sleep_for(delay);
    ranks[stopped].stop();
    std::this_thread::sleep_for(stop);
    ranks[stopped].resume();
    for (int rank = 0; rank < ranks.size(); ++rank) ranks[rank].ask();
    EXPECT_TRUE(ranks.is_exchanging());
  });
}

TEST_P(StopTest, AStopLongerThanTheTimeoutIsNamedInTimeAndWhoWakesGetsAnErrorToo) {
  RandomRounds::run(2, [](RandomRounds::Random& random) {
    RankWork work = draw_work(random, GetParam());
    // Every rank learns who is silent only if each rank waits for every other one.
    work.with_collectives = false;
    work.timeout = milliseconds(1000);
    auto const stopped = static_cast<int>(draw(random, 0, static_cast<std::uint64_t>(work.size) - 1));
    auto const delay = draw_delay(random, milliseconds(0), milliseconds(20));
    SCOPED_TRACE(testing::Message() << "rank " << stopped << " stopped after " << delay.count() << " us, " << work);
    StartedGroup ranks(work);
    ASSERT_TRUE(ranks.is_exchanging());
    std::this_thread::sleep_for(delay);
    ranks[stopped].stop();
    auto const stopped_at = Clock::now();
    Clock::duration slowest{};
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (rank == stopped) continue;
      SCOPED_TRACE("rank " + std::to_string(rank));
      auto const line = ranks[rank].read_line(work.timeout + milliseconds(10000));
      slowest = std::max(slowest, Clock::now() - stopped_at);
      EXPECT_LT(Clock::now() - stopped_at, work.timeout + milliseconds(1000));
      expect_failure(ranks[rank], line);
      if (!line) continue;
      EXPECT_TRUE(names(*line, "rank " + std::to_string(stopped)) && names(*line, "all_to_all_v")) << *line;
    }
    ranks[stopped].resume();
    expect_failure(ranks[stopped], ranks[stopped].read_line(milliseconds(10000)));
    // Processes are collected after the last report was timed: under a sanitizer the end of a process takes a second.
    for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_EQ(ranks[rank].collect(), 0) << "rank " << rank;
    std::cout << "slowest report: " << std::chrono::duration_cast<milliseconds>(slowest).count() << " ms" << std::endl;
  });
}

INSTANTIATE_TEST_SUITE_P(Group, StopTest, testing::ValuesIn(transports_between_processes()),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace headway::comm
