// SPDX-License-Identifier: Apache-2.0

// Backoff: when a thread that polls without success goes to sleep. Sleep must come in the end, not before the spin time
// is over, and progress in between puts it off for 100 ms at most. Limits are generous, as the host may be busy. With
// shared cores, the thread yields between polls.

#include "group/backoff.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace headway::comm {
namespace {

using std::chrono::microseconds;

constexpr int kManySteps = 1000;

TEST(Backoff, SleepsOnceTheSpinTimeIsOver) {
  Backoff backoff(/*cores_are_shared=*/false);
  int steps = 0;
  while (backoff.next(microseconds(0)) != Backoff::Step::kSleep) ASSERT_LT(++steps, kManySteps);
}

TEST(Backoff, ALongerSpinTimePutsSleepOff) {
  auto const from = Clock::now();
  Backoff backoff(/*cores_are_shared=*/false);
  while (backoff.next(microseconds(5000)) != Backoff::Step::kSleep) continue;
  EXPECT_GE(Clock::now() - from, microseconds(5000));
}

TEST(Backoff, RestartsPutSleepOffButNotForEver) {
  Backoff backoff(/*cores_are_shared=*/true);
  auto const from = Clock::now();
  do {
    backoff.restart();
    ASSERT_LT(Clock::now() - from, std::chrono::seconds(30));
  } while (backoff.next(microseconds(0)) != Backoff::Step::kSleep);
  EXPECT_GE(Clock::now() - from, std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace headway::comm
