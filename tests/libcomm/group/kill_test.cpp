// SPDX-License-Identifier: Apache-2.0
#include "failing_operation.hpp"
#include "headway/comm/group.hpp"
#include "host_traces.hpp"
#include "random_rounds.hpp"
#include "started_rank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

/// Time in which every survivor must name the victim. On verbs: the transport's retries (0.5 s) and a second.
milliseconds time_to_name(std::string_view transport) { return milliseconds(transport == "verbs" ? 1500 : 2000); }

/// Kills `victim` and checks the other ranks' reports. @returns the time until the last report.
Clock::duration kill_and_check(StartedGroup& ranks, int victim, milliseconds limit) {
  std::string const name = "rank " + std::to_string(victim);
  ranks[victim].kill();
  auto const killed_at = Clock::now();
  Clock::duration slowest{};
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == victim) continue;
    auto const line = ranks[rank].read_line(std::chrono::seconds(10));
    slowest = std::max(slowest, Clock::now() - killed_at);
    if (!line) {
      ADD_FAILURE() << "rank " << rank << " hangs or ended without a word";
      ranks[rank].kill();
      continue;
    }
    EXPECT_LT(Clock::now() - killed_at, limit) << "rank " << rank;
    EXPECT_TRUE(line->starts_with("failed: ") && names(*line, name)) << "rank " << rank << ": " << *line;
  }
  // Processes are collected after the last report was timed: under a sanitizer the end of a process takes a second.
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks[rank].collect(), 0) << "rank " << rank;
  }
  return slowest;
}

/// kill -9 of a rank in a stream of exchanges. Parameters: transport, bytes per block, bound (max_lag).
class KillTest : public testing::TestWithParam<std::tuple<char const*, int, int>> {};

TEST_P(KillTest, EverySurvivorOfAKillNamesTheVictimWithinTwoSeconds) {
  constexpr int kVictim = 2;
  auto const [transport, bytes, lag] = GetParam();
  for (int round = 0; round < 5; ++round) {
    StartedGroup ranks({.transport = transport, .bytes = static_cast<std::size_t>(bytes), .lag = lag});
    ASSERT_TRUE(ranks.is_exchanging());
    // A file without a name cannot be left behind, however a process ends.
    EXPECT_EQ(named_temporary_files_of(ranks[kVictim].process()), std::vector<std::string>());
    kill_and_check(ranks, kVictim, std::chrono::seconds(2));
  }
}

INSTANTIATE_TEST_SUITE_P(Group, KillTest,
                         testing::Combine(testing::ValuesIn(transports_between_processes()),
                                          testing::Values(100, 200000), testing::Values(0, 2)),
                         [](auto const& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::to_string(std::get<1>(tested.param)) + "_bytes_lag_" +
                                  std::to_string(std::get<2>(tested.param));
                         });

/// kill -9 of any rank at any time. Parameter: transport.
class RandomKillTest : public testing::TestWithParam<char const*> {};

TEST_P(RandomKillTest, EverySurvivorOfAKillAtARandomPointNamesTheVictimInTime) {
  Clock::duration slowest{};
  RandomRounds::run(5, [&](RandomRounds::Random& random) {
    RankWork const work = draw_work(random, GetParam());
    auto const victim = static_cast<int>(draw(random, 0, static_cast<std::uint64_t>(work.size) - 1));
    auto const delay = draw_delay(random, milliseconds(0), milliseconds(30));
    StartedGroup ranks(work);
    ASSERT_TRUE(ranks.is_exchanging()) << work;
    EXPECT_EQ(named_temporary_files_of(ranks[victim].process()), std::vector<std::string>());
    std::this_thread::sleep_for(delay);
    SCOPED_TRACE(testing::Message() << "rank " << victim << " killed after " << delay.count() << " us, " << work);
    slowest = std::max(slowest, kill_and_check(ranks, victim, time_to_name(GetParam())));
  });
  std::cout << "slowest report: " << std::chrono::duration_cast<milliseconds>(slowest).count() << " ms" << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Group, RandomKillTest, testing::ValuesIn(transports_between_processes()),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace headway::comm
