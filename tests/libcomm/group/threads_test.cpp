// SPDX-License-Identifier: Apache-2.0
#include "cpu_time.hpp"
#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

/// One group used by several threads, and the CPU time of waiting.
class ThreadsTest : public GroupTest {};

TEST_P(ThreadsTest, EachThreadMayUseAChannelOfItsOwn) {
  constexpr int kThreads = 3;
  auto with_channels = options();
  with_channels.num_channels = kThreads;
  with_channels.max_lag = 1;
  run_ranks(2, with_channels, [](Group& group) {
    run_threads_of_rank(kThreads, [&](int thread) {
      for (std::uint64_t round = 0; round < 100; ++round) {
        std::uint64_t const number = round * kThreads + static_cast<std::uint64_t>(thread);
        Exchange exchange(group.rank(), 2, number, uneven_sizes(number, 6000));
        exchange.start(group, thread);
        exchange.finish(group);
      }
    });
  });
}

TEST_P(ThreadsTest, ThreadsMayExchangeMessagesAndExchangesAtOnce) {
  run_ranks(3, options(), [](Group& group) {
    int const left = (group.rank() + 2) % 3, right = (group.rank() + 1) % 3;
    run_threads_of_rank(3, [&](int thread) {
      for (std::uint64_t round = 0; round < 60; ++round) {
        if (thread == 0) {
          Exchange exchange(group.rank(), 3, round, uneven_sizes(round, 6000));
          exchange.start(group);
          exchange.finish(group);
          continue;
        }
        auto const match = static_cast<std::uint64_t>(thread);  // Pairs a send with a receive, like the tags of MPI.
        auto const source = test_bytes(round * 100, round), expected = source;
        std::vector<std::byte> output(round * 100);
        auto const receive = group.receive(output, left, match, 1);
        auto const send = group.send(source, right, match, 1);
        finish(group, receive);
        finish(group, send);
        if (output != expected) throw std::runtime_error("wrong bytes in message " + std::to_string(round));
      }
    });
  });
}

TEST_P(ThreadsTest, AThreadMayWaitForWhatAnotherStarted) {
  run_ranks(2, options(), [](Group& group) {
    for (std::uint64_t number = 0; number < 50; ++number) {
      Exchange exchange(group.rank(), 2, number, uneven_sizes(number, 9000));
      auto const operation = exchange.start(group);
      run_threads_of_rank(2, [&](int) { finish(group, operation); });
      exchange.check();
    }
  });
}

TEST_P(ThreadsTest, WhatComesAfterAWaitMovesOnThoughNobodyWaits) {
  std::barrier after_wait(2), at_end(2);
  run_ranks(2, options(), [&](Group& group) {
    std::vector<std::byte> small(8);
    auto large = test_bytes(1 << 20, 3);
    if (group.rank() == 0) {
      std::vector<std::byte> output(large.size());
      auto const receive = group.receive(output, 1, 2, 1);
      finish(group, group.receive(small, 1, 1, 1));
      after_wait.arrive_and_wait();
      at_end.arrive_and_wait();  // Rank 1 has sent it by then, without a call of this rank.
      finish(group, receive);
      EXPECT_EQ(output, large);
      return;
    }
    std::this_thread::sleep_for(milliseconds(5));  // Rank 0 sleeps in its wait.
    finish(group, group.send(small, 0, 1, 1));
    after_wait.arrive_and_wait();
    finish(group, group.send(large, 0, 2, 1));
    at_end.arrive_and_wait();
  });
}

TEST_P(ThreadsTest, AllThreadsThatWaitForAnOperationWakeUpWhenItIsDone) {
  constexpr int kThreads = 8, kRounds = 15;
  std::vector<Clock::duration> spreads;  // Time from the first thread's return to the last thread's return, per round.
  std::barrier in_step(2);
  run_ranks(2, options(), [&](Group& group) {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      Exchange exchange(group.rank(), 2, round, even_sizes(64));
      in_step.arrive_and_wait();
      if (group.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(8));  // All waiters of rank 0 are asleep by then.
        exchange.start(group);
        exchange.finish(group);
        continue;
      }
      auto const operation = exchange.start(group);
      std::vector<Clock::time_point> returned(kThreads);
      run_threads_of_rank(kThreads, [&](int thread) {
        finish(group, operation);
        returned[static_cast<std::size_t>(thread)] = Clock::now();
      });
      auto const [first, last] = std::ranges::minmax(returned);
      spreads.push_back(last - first);
      exchange.check();
    }
  });
  std::ranges::sort(spreads);
  ASSERT_EQ(spreads.size(), kRounds);
  // Half of what a missed wake-up costs: eight threads of an emulated guest beside other work take 21 ms to get up.
  EXPECT_LT(spreads[kRounds / 2], milliseconds(50)) << "a waiter that misses its wake-up sleeps for 100 ms";
}

/// Runs this thread, and those that it starts, on one core until destruction.
class OneCore {
 public:
  OneCore() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    CPU_SET(first, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  OneCore(OneCore const&) = delete;
  OneCore& operator=(OneCore const&) = delete;
  ~OneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

/// How often this thread has gone to sleep.
long num_sleeps() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;
}

TEST_P(ThreadsTest, OnSharedCoresAWaiterDoesNotWakeUpForEachPeer) {
  if (GetParam().transport == Transport::kTcp) GTEST_SKIP() << "tcp does not know which ranks share a host";
  OneCore const one_core;
  constexpr int kRanks = 12;
  std::barrier in_step(kRanks);
  run_ranks(kRanks, options(), [&](Group& group) {
    Exchange exchange(group.rank(), kRanks, 1, even_sizes(64));
    in_step.arrive_and_wait();
    // Rank 0 waits for 11 messages that come one by one.
    std::this_thread::sleep_for(group.rank() * milliseconds(7));
    exchange.start(group);
    auto const before = num_sleeps();
    exchange.finish(group);
    if (group.rank() == 0) {
      EXPECT_LT(num_sleeps() - before, kRanks / 2);
    }
    exchange.check();
    in_step.arrive_and_wait();
  });
}

TEST_P(ThreadsTest, WaitingBurnsLittleProcessorTime) {
  std::barrier measured(3);
  run_ranks(3, options(), [&](Group& group) {
    Exchange exchange(group.rank(), 3, 1, even_sizes(100));
    if (group.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(1000));
      exchange.start(group);
      exchange.finish(group);
    } else {
      exchange.start(group);
      auto const cpu_start = thread_cpu_time();
      exchange.finish(group);
      EXPECT_LT(thread_cpu_time() - cpu_start, milliseconds(50)) << "rank " << group.rank();
    }
    measured.arrive_and_wait();
  });
}

TEST_P(ThreadsTest, AnIdleGroupBurnsLittleProcessorTime) {
  std::barrier measured(3);
  run_ranks(3, options(), [&](Group& group) {
    finish(group, group.barrier());
    measured.arrive_and_wait();
    if (group.rank() == 0) {
      auto const cpu_start = process_cpu_time();
      std::this_thread::sleep_for(milliseconds(1000));
      EXPECT_LT(process_cpu_time() - cpu_start, milliseconds(60)) << "3 idle ranks in one process";
    }
    measured.arrive_and_wait();
  });
}

TEST_P(ThreadsTest, AGroupThatHasFailedBurnsLittleProcessorTime) {
  // After the failure the OOB messages of other ranks, and the leave of one rank, remain in sockets that nobody reads.
  std::barrier start(3), all_failed(3), measured(2);
  run_ranks(3, options(), [&](Group& group) {
    start.arrive_and_wait();
    group.admin().abort("enough");
    all_failed.arrive_and_wait();
    if (group.rank() == 2) return;
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      auto const cpu_start = process_cpu_time();
      std::this_thread::sleep_for(milliseconds(1000));
      EXPECT_LT(process_cpu_time() - cpu_start, milliseconds(60)) << "2 ranks in one process";
    }
    measured.arrive_and_wait();
  });
}

HEADWAY_TEST_GROUPS(ThreadsTest);

}  // namespace
}  // namespace headway::comm
