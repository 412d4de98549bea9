// SPDX-License-Identifier: Apache-2.0

// LagAdvisor: the bound (max_lag) that it recommends, against what the best bound would have been.
//
// The tests make up how long each rank is busy before each exchange, feed that to the advisor, and compute the time
// per exchange of every bound by an independent implementation of the recurrence (simulated_us()). Advice is good if
// it costs at most a few percent more than the best bound, and if it asks for no more lag than needed. Lateness comes
// in several kinds: random, one rank at a time, bursts, none at all.
// Source: Listing 2 of the paper on bounded lag synchronisation, which both implementations follow.

#include "observe/lag_advisor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace headway::comm {
namespace {

constexpr int kRanks = 8, kLimit = 8;  ///< Number of ranks; largest bound.
using BusyOf = std::function<BusyTimes(std::uint64_t number, int rank)>;

/// Feeds exchanges [first, end) to the advisor. Each is completed at once.
void run(LagAdvisor& advisor, std::uint64_t first, std::uint64_t end, BusyOf const& busy_of) {
  for (std::uint64_t number = first; number < end; ++number) {
    for (int rank = 0; rank < kRanks; ++rank) advisor.add(number, rank, busy_of(number, rank));
    advisor.completed(number);
  }
}

/// Advice after `count` exchanges.
int advice_after(std::uint64_t count, BusyOf const& busy_of) {
  LagAdvisor advisor(kRanks, kLimit);
  run(advisor, 0, count, busy_of);
  return advisor.advice();
}

/// Random bits that depend on the two numbers alone (finalizer of splitmix64).
std::uint64_t draw(std::uint64_t one, std::uint64_t other) {
  std::uint64_t bits = one * 0x9e3779b97f4a7c15u + (other + 1) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  return bits ^ bits >> 31;
}

/// Busy times: `work_us` before each wait, and a random delay up to `max_us` after it.
BusyOf random_delays(std::uint32_t max_us, std::uint32_t work_us) {
  return [=](std::uint64_t number, int rank) {
    auto const delay_us = draw(number, static_cast<std::uint64_t>(rank)) % (max_us + 1);
    return BusyTimes{.before_wait_us = work_us, .after_wait_us = static_cast<std::uint32_t>(delay_us)};
  };
}

/// Listing 2 of the paper, implemented a second time for long runs with one bound per exchange. @returns us per
/// exchange.
double simulated_us(BusyOf const& busy_of, std::function<std::size_t(std::uint64_t)> const& max_lag_of,
                    std::uint64_t count) {
  std::vector<double> all_started(count);
  std::array<double, kRanks> now{};
  for (std::uint64_t number = 0; number < count; ++number) {
    std::size_t const max_lag = max_lag_of(number);
    for (int rank = 0; rank < kRanks; ++rank) {
      auto& mine = now[static_cast<std::size_t>(rank)];
      auto const busy = busy_of(number, rank);
      mine += busy.before_wait_us;
      if (number > max_lag) mine = std::max(mine, all_started[number - 1 - max_lag]);
      mine += busy.after_wait_us;
      all_started[number] = std::max(all_started[number], mine);
    }
  }
  return all_started.back() / static_cast<double>(count);
}

double simulated_us(BusyOf const& busy_of, std::size_t max_lag, std::uint64_t count) {
  return simulated_us(
      busy_of, [=](auto) { return max_lag; }, count);
}

// Until 24 exchanges are complete, the advice is the limit.
TEST(LagAdvisorTest, NothingIsKnownInTheBeginning) {
  auto const balanced = [](auto, int) { return BusyTimes{.after_wait_us = 900}; };
  EXPECT_EQ(advice_after(0, balanced), kLimit);
  EXPECT_EQ(advice_after(23, balanced), kLimit);
  EXPECT_EQ(advice_after(24, balanced), 0) << "that lag does not help shows soon";
  EXPECT_EQ(advice_after(24, random_delays(10'000, 500)), kLimit - 1);
}

TEST(LagAdvisorTest, LagIsNotWorthHavingWhereItCannotHelp) {
  EXPECT_EQ(advice_after(300, [](auto, int) { return BusyTimes{.before_wait_us = 100, .after_wait_us = 900}; }), 0);
  EXPECT_EQ(advice_after(300, [](auto, int) { return BusyTimes{}; }), 0);
  auto const straggler = [](auto, int rank) { return BusyTimes{.after_wait_us = rank == 3 ? 6000U : 1000U}; };
  EXPECT_EQ(advice_after(300, straggler), 0);
}

// replay_us() is the time per exchange that the advisor computes for a bound from the times of the latest exchanges.
TEST(LagAdvisorTest, UnderRandomDelaysItIsNearlyTheBest) {
  auto const delays = random_delays(10'000, 2000);
  LagAdvisor advisor(kRanks, kLimit);
  run(advisor, 0, 512, delays);
  EXPECT_GT(advisor.advice(), 0);
  double const best = advisor.replay_us(kLimit);
  EXPECT_LE(advisor.replay_us(advisor.advice()), best * (1 + LagAdvisor::kTolerance));
}

TEST(LagAdvisorTest, TheReplayIsTheRecurrence) {
  auto const delays = random_delays(5000, 700);
  LagAdvisor advisor(kRanks, kLimit);
  run(advisor, 0, LagAdvisor::kWindow, delays);
  for (int max_lag = 0; max_lag <= kLimit; ++max_lag) {
    double const expected = simulated_us(delays, static_cast<std::size_t>(max_lag), LagAdvisor::kWindow);
    EXPECT_NEAR(advisor.replay_us(max_lag), expected, expected * 0.05) << max_lag;
  }
}

/// Result of a loop that follows the advice, compared with fixed bounds.
struct Followed {
  double time;       ///< Time over the time with the best fixed bound.
  double lag_above;  ///< Mean bound less the smallest fixed bound within 3% of the best time.
};

Followed follow(BusyOf const& busy_of) {
  constexpr std::uint64_t kCount = 1000;
  LagAdvisor advisor(kRanks, kLimit);
  double sum_of_lags = 0;
  auto const advised = [&](std::uint64_t number) {
    for (int rank = 0; rank < kRanks; ++rank) advisor.add(number, rank, busy_of(number, rank));
    if (number >= kLimit) advisor.completed(number - kLimit);  // The latest time under a bound of kLimit.
    sum_of_lags += advisor.advice();
    return static_cast<std::size_t>(advisor.advice());
  };
  double const followed_us = simulated_us(busy_of, advised, kCount);

  std::vector<double> fixed_us;
  for (std::size_t max_lag = 0; max_lag <= kLimit; ++max_lag)
    fixed_us.push_back(simulated_us(busy_of, max_lag, kCount));
  double const best_us = *std::ranges::min_element(fixed_us);
  auto const smallest = std::ranges::find_if(fixed_us, [&](double us) { return us <= best_us * 1.03; });
  return {.time = followed_us / best_us,
          .lag_above = sum_of_lags / kCount - static_cast<double>(smallest - fixed_us.begin())};
}

constexpr std::uint64_t kNextDraws = 1'000'000;  ///< Exchanges from this number on draw other random numbers.

/// Checks an adaptive bound on one kind of lateness: nearly the best time, with hardly more lag than needed.
void expect_to_follow_well(char const* pattern, BusyOf const& busy_of, double mean_time = 1.025) {
  constexpr int kRuns = 16;
  double sum_of_times = 0, sum_of_lags_above = 0;
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    auto const followed = follow([&](auto number, int rank) { return busy_of(run * kNextDraws + number, rank); });
    EXPECT_LE(followed.time, mean_time + 0.01) << pattern << ", run " << run;
    sum_of_times += followed.time;
    sum_of_lags_above += followed.lag_above;
  }
  EXPECT_LE(sum_of_times / kRuns, mean_time) << pattern;
  EXPECT_LE(sum_of_lags_above / kRuns, 0.8) << pattern;
}

TEST(LagAdvisorTest, FollowingItIsAsGoodAsTheBestFixedBound) {
  auto const late_at_times = [](std::uint64_t number, int rank) {
    bool const is_late = draw(number, static_cast<std::uint64_t>(rank) + kRanks) % 20 == 0;
    return BusyTimes{.after_wait_us = is_late ? 20'000U : 2000U};
  };
  auto const drifting = [](std::uint64_t number, int rank) {
    bool const is_late = draw(number / 2, 99) % kRanks == static_cast<std::uint64_t>(rank);
    return BusyTimes{.after_wait_us = is_late ? 8000U : 2000U};
  };
  expect_to_follow_well("random delays", random_delays(10'000, 500));
  expect_to_follow_well("a straggler that changes every two exchanges", drifting);
  expect_to_follow_well("bursts", late_at_times);
  expect_to_follow_well("a straggler",
                        [](auto, int rank) { return BusyTimes{.after_wait_us = rank == 7 ? 6000U : 2000U}; });
  expect_to_follow_well("balance", [](auto, int) { return BusyTimes{.before_wait_us = 500, .after_wait_us = 4000}; });
  auto const changing = [](std::uint64_t number, int rank) {
    return number % kNextDraws < 500 ? BusyTimes{.after_wait_us = 4000} : random_delays(10'000, 500)(number, rank);
  };
  // The advisor replays the latest kWindow exchanges. So many have to pass before the advice follows the change.
  expect_to_follow_well("random delays after balance", changing, 1.03);
}

TEST(LagAdvisorTest, WorkThatOverlapsWithTheExchangeHidesLateness) {
  // Each rank in turn is late, by less than the work that all ranks do before they wait.
  auto const hidden = [](std::uint64_t number, int rank) {
    bool const is_late = number % kRanks == static_cast<std::uint64_t>(rank);
    return BusyTimes{.before_wait_us = 2000, .after_wait_us = is_late ? 1000U : 0U};
  };
  auto const plain = [&](std::uint64_t number, int rank) {
    BusyTimes const busy = hidden(number, rank);
    return BusyTimes{.before_wait_us = 0, .after_wait_us = busy.before_wait_us + busy.after_wait_us};
  };
  LagAdvisor with_overlap(kRanks, kLimit), without(kRanks, kLimit);
  run(with_overlap, 0, 256, hidden);
  run(without, 0, 256, plain);
  EXPECT_LT(with_overlap.replay_us(0), without.replay_us(0) * 0.9);
  EXPECT_LE(with_overlap.advice(), without.advice());
}

TEST(LagAdvisorTest, TheBoundFollowsWhatHappens) {
  LagAdvisor advisor(kRanks, kLimit);
  auto const quiet = [](auto, int) { return BusyTimes{.after_wait_us = 3000}; };
  run(advisor, 0, 256, quiet);
  EXPECT_EQ(advisor.advice(), 0);
  run(advisor, 256, 512, random_delays(10'000, 1000));
  EXPECT_GT(advisor.advice(), 0);
  run(advisor, 512, 768, quiet);
  EXPECT_EQ(advisor.advice(), 0);
}

TEST(LagAdvisorTest, ItLooksNoFurtherThanItsLimit) {
  LagAdvisor advisor(2, 0);
  for (std::uint64_t number = 0; number < 100; ++number) {
    for (int rank = 0; rank < 2; ++rank) advisor.add(number, rank, random_delays(9000, 0)(number, rank));
    advisor.completed(number);
  }
  EXPECT_EQ(advisor.advice(), 0);
}

TEST(BusyClockTest, WaitingIsNotBusy) {
  BusyClock clock;
  auto times = clock.exchange_started(1000);
  EXPECT_EQ(times.before_wait_us + times.after_wait_us, 0U) << "nothing is known before the first";
  clock.wait_began(1300);
  clock.wait_ended(9000);
  times = clock.exchange_started(9050);
  EXPECT_EQ(times.before_wait_us, 300U);
  EXPECT_EQ(times.after_wait_us, 50U);
}

TEST(BusyClockTest, SeveralWaitsOrNoneMayLieBetweenTwoExchanges) {
  BusyClock clock;
  static_cast<void>(clock.exchange_started(0));
  clock.wait_began(10);
  clock.wait_ended(100);
  clock.wait_began(130);
  clock.wait_ended(500);
  auto times = clock.exchange_started(507);
  EXPECT_EQ(times.before_wait_us, 10U);
  EXPECT_EQ(times.after_wait_us, 37U);
  times = clock.exchange_started(600);
  EXPECT_EQ(times.before_wait_us, 93U);
  EXPECT_EQ(times.after_wait_us, 0U);
}

// A pause is a wait for something other than an exchange of this channel.
TEST(BusyClockTest, APauseIsNeitherWorkNorTheFirstWait) {
  BusyClock clock;
  static_cast<void>(clock.exchange_started(0));
  clock.pause_began(10);
  clock.wait_ended(100);
  clock.wait_began(130);
  clock.wait_ended(500);
  clock.pause_began(507);
  clock.wait_ended(900);
  auto const times = clock.exchange_started(1000);
  EXPECT_EQ(times.before_wait_us, 40U);
  EXPECT_EQ(times.after_wait_us, 107U);
}

}  // namespace
}  // namespace headway::comm
