// SPDX-License-Identifier: Apache-2.0

// Conformance of transports: sleep(), OOB messages, and the descriptors for epoll.
//
// From arm() to disarm() every put wakes sleep(). A lost wake-up shows as a sleep that lasts until its deadline.

#include "cpu_time.hpp"
#include "endpoint_conformance.hpp"
#include "headway/comm/endpoint.hpp"
#include "ready_descriptor.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

/// Deadline of a sleep. Only a lost wake-up lets a sleep last this long.
constexpr auto kLongSleep = std::chrono::seconds(10);
constexpr auto kQuiet = std::chrono::milliseconds(20);   ///< A descriptor that is not readable for so long is quiet.
constexpr auto kSoon = std::chrono::milliseconds(5000);  ///< A descriptor must become readable within this time.

/// Sleeps until `done()`, with the calls in the order that a caller must use. @returns sleeps that ran to the deadline.
template <typename Predicate>
int sleep_until(Endpoint& endpoint, RecordingSink& sink, Predicate done) {
  int overslept = 0;
  while (!done() && overslept == 0) {
    endpoint.arm();
    if (!endpoint.poll(sink) && !done()) {
      Deadline const deadline = Clock::now() + kLongSleep;
      endpoint.sleep(deadline);
      overslept += Clock::now() >= deadline ? 1 : 0;
    }
    endpoint.disarm();
    endpoint.poll(sink);
  }
  return overslept;
}

/// Arms `rank` after all arrivals and wake-ups are taken.
void arm_quiet(EndpointGroup& ranks, int rank) {
  ASSERT_TRUE(ranks.settle());
  ranks[rank].sleep(Deadline::min());  // Takes a pending wake-up, without blocking.
  ranks[rank].arm();
  ASSERT_FALSE(ranks.poll(rank));
}

/// Duration of one sleep of at most kLongSleep.
Clock::duration time_of_sleep(Endpoint& endpoint) {
  auto const start = Clock::now();
  endpoint.sleep(start + kLongSleep);
  return Clock::now() - start;
}

}  // namespace

TEST_P(SleepConformance, SleepEndsAtItsDeadlineAndBurnsLittleProcessorTime) {
  auto ranks = connect(2);
  arm_quiet(ranks, 0);
  auto const start = Clock::now();
  auto const deadline = start + std::chrono::milliseconds(500);
  auto const cpu_start = thread_cpu_time();
  while (Clock::now() < deadline) ranks[0].sleep(deadline);  // sleep() may return early.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  EXPECT_LT(thread_cpu_time() - cpu_start, std::chrono::milliseconds(50));
  ranks[0].disarm();
}

TEST_P(SleepConformance, APutBetweenArmAndSleepEndsTheSleep) {
  auto ranks = connect(2);
  auto const payload = test_bytes(10, 1);
  for (std::uint16_t round = 0; round < 20; ++round) {
    arm_quiet(ranks, 1);
    ASSERT_TRUE(ranks[0].put({.peer = 1}, {}, payload, Tag{.operation = round}).ok());
    ranks[0].submit();
    EXPECT_LT(time_of_sleep(ranks[1]), kLongSleep / 2);
    ranks[1].disarm();
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{.operation = round}); }));
  }
}

TEST_P(SleepConformance, EachPutEndsASleepWhileARankStaysArmed) {
  auto ranks = connect(2);
  arm_quiet(ranks, 1);
  for (std::uint16_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(ranks[0].put({.peer = 1}, {}, {}, Tag{.operation = round}).ok());
    ranks[0].submit();
    auto const deadline = Clock::now() + kLongSleep;
    while (!ranks.heard(1).has(0, Tag{.operation = round}) && Clock::now() < deadline) {
      ranks[1].sleep(deadline);
      ranks.poll(1);
    }
    ASSERT_LT(Clock::now(), deadline - kLongSleep / 2) << "round " << round;
  }
  ranks[1].disarm();
}

TEST_P(SleepConformance, APutBeforeArmIsFoundByThePollBeforeTheSleep) {
  auto ranks = connect(2);
  ASSERT_TRUE(ranks.settle());
  ASSERT_TRUE(ranks[0].put({.peer = 1}, {}, {}, Tag{}).ok());
  ranks[0].submit();
  EXPECT_EQ(sleep_until(ranks[1], ranks.heard(1), [&] { return ranks.heard(1).has(0, Tag{}); }), 0);
}

TEST_P(SleepConformance, ASleepingPairNeverMissesAWakeUp) {
  constexpr std::uint16_t kRounds = 1000;
  auto ranks = connect(2);
  std::atomic<int> overslept{0};
  auto const play = [&](int rank) {
    for (std::uint16_t round = 0; round < kRounds && overslept == 0; ++round) {
      if (rank == round % 2) {
        while (!ranks[rank].put({.peer = 1 - rank}, {}, {}, Tag{.operation = round}).ok()) ranks.poll(rank);
        ranks[rank].submit();
      } else {
        overslept += sleep_until(ranks[rank], ranks.heard(rank),
                                 [&] { return ranks.heard(rank).has(1 - rank, Tag{.operation = round}); });
      }
    }
  };
  {
    std::jthread const other(play, 1);
    play(0);
  }
  EXPECT_EQ(overslept, 0);
}

TEST_P(SleepConformance, ARingOfSleepersPassesATokenRound) {
  constexpr int kRanks = 4;
  constexpr std::uint16_t kRounds = 200;
  auto ranks = connect(kRanks);
  std::atomic<int> overslept{0};
  auto const play = [&](int rank) {
    int const left = (rank + kRanks - 1) % kRanks, right = (rank + 1) % kRanks;
    for (std::uint16_t round = 0; round < kRounds && overslept == 0; ++round) {
      auto const token_is_here = [&] { return ranks.heard(rank).has(left, Tag{.operation = round}); };
      if (rank != 0) overslept += sleep_until(ranks[rank], ranks.heard(rank), token_is_here);
      while (!ranks[rank].put({.peer = right}, {}, {}, Tag{.operation = round}).ok()) ranks.poll(rank);
      ranks[rank].submit();
      if (rank == 0) overslept += sleep_until(ranks[rank], ranks.heard(rank), token_is_here);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(play, rank);
  }
  EXPECT_EQ(overslept, 0);
}

TEST_P(SleepConformance, WakeEndsTheSleepOfAllThreads) {
  auto ranks = connect(2);
  arm_quiet(ranks, 0);
  std::atomic<int> asleep{2};
  std::atomic<int> overslept{0};
  auto const sleeper = [&] {
    overslept += time_of_sleep(ranks[0]) >= kLongSleep ? 1 : 0;
    --asleep;
  };
  {
    std::jthread const first(sleeper), second(sleeper);
    while (asleep > 0) {  // A sleeper may not have begun to sleep at the first wake().
      ranks[0].wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(overslept, 0);
  ranks[0].disarm();
}

TEST_P(SleepConformance, AnOobMessageReachesItsPeerOnlyAndInOrder) {
  auto ranks = connect(3);
  std::string const long_text(300, 'x');
  ranks[0].send_oob(2, "first");
  ranks[0].send_oob(2, long_text);
  ranks[1].send_oob(2, "from another");
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(2).oob_messages().size() >= 3; }));
  EXPECT_TRUE(ranks.settle());
  std::vector<std::string> from_0, from_1;
  for (auto const& [peer, text] : ranks.heard(2).oob_messages()) (peer == 0 ? from_0 : from_1).push_back(text);
  EXPECT_EQ(from_0, (std::vector<std::string>{"first", long_text}));
  EXPECT_EQ(from_1, (std::vector<std::string>{"from another"}));
  EXPECT_TRUE(ranks.heard(0).oob_messages().empty() && ranks.heard(1).oob_messages().empty());
}

TEST_P(SleepConformance, AnOobMessageEndsASleep) {
  auto ranks = connect(2);
  arm_quiet(ranks, 1);
  ranks[0].send_oob(1, "wake up");
  EXPECT_LT(time_of_sleep(ranks[1]), kLongSleep / 2);
  ranks[1].disarm();
  EXPECT_TRUE(ranks.poll_until([&] { return ranks.heard(1).oob_messages().size() == 1; }));
}

TEST_P(SleepConformance, TheLossOfAPeerEndsASleep) {
  auto ranks = connect(3);
  arm_quiet(ranks, 1);
  ranks.drop(2);
  EXPECT_LT(time_of_sleep(ranks[1]), kLongSleep / 2);
  ranks[1].disarm();
  EXPECT_TRUE(ranks.poll_until([&] { return ranks.heard(1).losses_of(2) == 1; }));
}

TEST_P(SleepConformance, TheControlFdIsReadableWhileAnOobMessageOrALossWaits) {
  auto ranks = connect(3);
  int const fd = ranks[0].control_fd();
  if (fd < 0) GTEST_SKIP() << "this transport has no control descriptor";
  ASSERT_TRUE(ranks.settle());
  EXPECT_FALSE(is_readable(fd, kQuiet));

  ranks[1].send_oob(0, "hello");
  EXPECT_TRUE(is_readable(fd, kSoon));
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).oob_messages().size() == 1; }) && ranks.settle());
  EXPECT_FALSE(is_readable(fd, kQuiet)) << "still readable after the message was polled";

  ranks.drop(2);
  EXPECT_TRUE(is_readable(fd, kSoon));
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).losses_of(2) == 1; }) && ranks.settle());
  EXPECT_FALSE(is_readable(fd, kQuiet)) << "still readable after the loss was polled";
}

TEST_P(SleepConformance, TheActivityDescriptorIsReadableForAPutAfterArmToo) {
  auto ranks = connect(3);
  int const fd = ranks[0].activity_fd();
  if (fd < 0) GTEST_SKIP() << "this transport has no activity descriptor";
  for (std::uint16_t round = 0; round < 5; ++round) {
    arm_quiet(ranks, 0);
    EXPECT_FALSE(is_readable(fd, kQuiet)) << "round " << round;
    ASSERT_TRUE(ranks[1].put({.peer = 0}, {}, {}, Tag{.operation = round}).ok());
    ranks[1].submit();
    EXPECT_TRUE(is_readable(fd, kSoon)) << "round " << round;
    ranks[0].disarm();
    ranks[0].sleep(Deadline::min());  // Takes the pending wake-up.
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(1, Tag{.operation = round}); }));
  }
  arm_quiet(ranks, 0);
  ranks[1].send_oob(0, "hello");
  EXPECT_TRUE(is_readable(fd, kSoon));
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).oob_messages().size() == 1; }));
  arm_quiet(ranks, 0);
  ranks.drop(2);
  EXPECT_TRUE(is_readable(fd, kSoon));
  ranks[0].disarm();
}

}  // namespace headway::comm
