// SPDX-License-Identifier: Apache-2.0
#include "child_process.hpp"
#include "exchange.hpp"
#include "failing_operation.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Timeouts, abort() and ranks that leave: operations fail with errors that name the peer. send() and receive() take a
/// block, the peer, the match (tag) and the data type.
class FailureTest : public GroupTest {};

TEST_P(FailureTest, AnExchangeThatTimesOutNamesWhomItLacks) {
  auto impatient = options();
  impatient.timeout = milliseconds(300);
  std::barrier all_failed(4);
  run_ranks(4, impatient, [&](Group& group) {
    if (group.rank() < 2) {
      Exchange exchange(group.rank(), 4, 1, even_sizes(100));
      auto const start = Clock::now();
      Status const status = group.wait(*exchange.start(group));
      EXPECT_FALSE(status.ok());
      EXPECT_LT(Clock::now() - start, seconds(10));
      EXPECT_TRUE(names(status.message(), "rank 2") && names(status.message(), "rank 3")) << status.message();
      EXPECT_TRUE(names(status.message(), "300")) << status.message();
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, ABlockingExchangeThatTimesOutNamesWhomItLacks) {
  auto impatient = options();
  impatient.timeout = milliseconds(300);
  std::barrier all_failed(3);
  run_ranks(3, impatient, [&](Group& group) {
    if (group.rank() == 0) {
      Status const status = Exchange(0, 3, 1, even_sizes(100)).run(group);
      EXPECT_EQ(status.code(), StatusCode::kTimeout);
      EXPECT_TRUE(names(status.message(), "rank 1") && names(status.message(), "rank 2")) << status.message();
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, AReceiveThatTimesOutNamesItsPeer) {
  auto impatient = options();
  impatient.timeout = milliseconds(200);
  std::barrier all_failed(3);
  run_ranks(3, impatient, [&](Group& group) {
    if (group.rank() == 0) {
      std::vector<std::byte> block(64);
      Status const status = group.wait(*group.receive(block, 2, 1, 1));
      EXPECT_EQ(status.code(), StatusCode::kTimeout);
      EXPECT_TRUE(names(status.message(), "rank 2") && names(status.message(), "64")) << status.message();
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, ASendThatTimesOutNamesWhoShouldTakeIt) {
  auto impatient = options();
  impatient.timeout = milliseconds(200);
  std::barrier all_failed(3);
  run_ranks(3, impatient, [&](Group& group) {
    if (group.rank() == 0) {
      std::vector<std::byte> const block(100000);
      Status const status = group.wait(*group.send(block, 2, 1, 1));
      EXPECT_EQ(status.code(), StatusCode::kTimeout);
      EXPECT_TRUE(names(status.message(), "rank 2") && names(status.message(), "100000")) << status.message();
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, AnOperationWithACallbackTimesOutThoughNobodyWaitsForIt) {
  auto impatient = options();
  impatient.timeout = milliseconds(200);
  std::barrier all_failed(2);
  run_ranks(2, impatient, [&](Group& group) {
    if (group.rank() == 0) {
      Exchange exchange(0, 2, 1, even_sizes(100));
      auto const operation = exchange.start(group);
      std::atomic<bool> called{false};
      group.on_done(*operation, [&] { called = true; });
      Deadline const deadline = Clock::now() + seconds(10);
      while (!called && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
      ASSERT_TRUE(called && operation->done());
      EXPECT_EQ(operation->status().code(), StatusCode::kTimeout);
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, AWaitWithItsOwnTimeoutLeavesTheOperationRunning) {
  std::barrier has_timed_out(2);
  run_ranks(2, options(), [&](Group& group) {
    Exchange exchange(group.rank(), 2, 1, even_sizes(10000));
    if (group.rank() == 0) {
      Status const status = group.wait(*exchange.start(group), milliseconds(50));
      EXPECT_EQ(status.code(), StatusCode::kTimeout);
      EXPECT_TRUE(names(status.message(), "rank 1")) << status.message();
      EXPECT_TRUE(group.monitor().health().ok());
      has_timed_out.arrive_and_wait();
    } else {
      has_timed_out.arrive_and_wait();
      exchange.start(group);
    }
    exchange.finish(group);
  });
}

TEST_P(FailureTest, AbortFailsPendingAndLaterWorkOfEveryRankWithItsReason) {
  std::barrier all_started(3), all_failed(3);
  run_ranks(3, options(), [&](Group& group) {
    Exchange first(group.rank(), 3, 1, even_sizes(100)), second(group.rank(), 3, 2, even_sizes(100));
    if (group.rank() != 1) {
      first.start(group);
      second.start(group);
    }
    all_started.arrive_and_wait();
    if (group.rank() == 1) {
      group.admin().abort("the reactor is on fire");
      EXPECT_EQ(group.monitor().health().code(), StatusCode::kAborted);
    } else {
      for (auto* exchange : {&first, &second}) {
        Status const status = group.wait(*exchange->operation());
        EXPECT_EQ(status.code(), StatusCode::kAborted);
        EXPECT_NE(status.message().find("the reactor is on fire"), std::string::npos) << status.message();
        EXPECT_TRUE(names(status.message(), "rank 1")) << status.message();
      }
      EXPECT_FALSE(group.monitor().health().ok());
    }
    EXPECT_THROW(
        {
          Status status = group.wait(*group.barrier());
          if (!status.ok()) throw OperationError(status);
        },
        OperationError);
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, AForkedChildThatDestroysItsCopyHarmsNobody) {
  // The other rank allocates nothing during the fork: the child of a process with AddressSanitizer waits for ever if a
  // thread of its parent held a lock of the allocator.
  std::barrier before_and_after_fork(2);
  run_ranks(2, options(), [&](Group& group) {
    Exchange pending(group.rank(), 2, 0, even_sizes(100));
    pending.start(group);
    before_and_after_fork.arrive_and_wait();
    if (group.rank() == 0) {
      pid_t const child = ::fork();
      if (child == 0) {
        std::destroy_at(&group);
        ::_exit(0);
      }
      EXPECT_EQ(wait_for_exit(child), 0);
    }
    before_and_after_fork.arrive_and_wait();
    for (std::uint64_t number = 1; number < 20; ++number) {
      Exchange exchange(group.rank(), 2, number, even_sizes(20000));
      exchange.start(group);
      exchange.finish(group);
    }
    pending.finish(group);
  });
}

TEST_P(FailureTest, AbortEndsTheWaitOfAnotherThread) {
  std::barrier all_done(2);
  run_ranks(2, options(), [&](Group& group) {
    if (group.rank() == 0) {
      std::vector<std::byte> block(8);
      auto const operation = group.receive(block, 1, 1, 1);
      std::jthread const aborter([&] {
        std::this_thread::sleep_for(milliseconds(100));
        group.admin().abort("enough");
      });
      auto const start = Clock::now();
      EXPECT_EQ(group.wait(*operation).code(), StatusCode::kAborted);
      EXPECT_LT(Clock::now() - start, seconds(10));
    }
    all_done.arrive_and_wait();
  });
}

TEST_P(FailureTest, ARankThatLeavesFailsThePendingWorkThatNeedsItAndIsNamed) {
  std::barrier all_started(4), all_failed(3);
  run_ranks(4, options(), [&](Group& group) {
    if (group.rank() == 2) {
      all_started.arrive_and_wait();
      return;  // Destroys its group.
    }
    Exchange exchange(group.rank(), 4, 1, even_sizes(100));
    exchange.start(group);
    all_started.arrive_and_wait();
    auto const start = Clock::now();
    Status const status = group.wait(*exchange.operation());
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_LT(Clock::now() - start, seconds(5));
    EXPECT_TRUE(names(status.message(), "rank 2")) << status.message();
    EXPECT_TRUE(exchange.are_guards_intact());
    all_failed.arrive_and_wait();
  });
}

TEST_P(FailureTest, ARankThatIsDoneMayLeaveWhileOthersStillReadWhatItSent) {
  auto with_lag = options();
  with_lag.max_lag = 2;
  for (std::uint64_t round = 0; round < 10; ++round) {
    run_ranks(3, with_lag, [&](Group& group) {
      std::vector<Exchange> exchanges;
      for (std::uint64_t number = 0; number < 3; ++number) {
        exchanges.emplace_back(group.rank(), 3, number, even_sizes(3000)).start(group);
      }
      if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
      for (auto& exchange : exchanges) exchange.finish(group);
    });
  }
}

TEST_P(FailureTest, ARankThatLeavesHoldsUpNobodyElse) {
  // Rank 0 consumes rank 1's messages after rank 1 has left. It cannot report this to rank 1 any more, only to rank 2.
  constexpr std::uint64_t kFromTheLeaver = 16, kFromTheOther = 100;
  std::latch has_left(1);
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto group = Group::connect(rank, 3, store, options());
    auto const send = [&](std::uint64_t count) {
      for (std::uint64_t message = 0; message < count; ++message) {
        auto const block = test_bytes(100, message);
        finish(*group, group->send(block, 0, 1, 1));
      }
    };
    auto const receive = [&](int source, std::uint64_t count) {
      for (std::uint64_t message = 0; message < count; ++message) {
        GuardedBytes block(100);
        finish(*group, group->receive(block.span(), source, 1, 1));
        EXPECT_TRUE(std::ranges::equal(block.span(), test_bytes(100, message)));
      }
    };
    if (rank == 1) {
      send(kFromTheLeaver);
      group.reset();
      has_left.count_down();
    } else if (rank == 2) {
      has_left.wait();
      send(kFromTheOther);
    } else {
      has_left.wait();
      receive(1, kFromTheLeaver);
      receive(2, kFromTheOther);
    }
  });
}

TEST_P(FailureTest, DestroyingAGroupWithWorkPendingFailsThatWork) {
  OperationPtr pending;
  std::vector<std::byte> block(8);
  std::barrier started(2);
  run_ranks(2, options(), [&](Group& group) {
    if (group.rank() == 0) pending = group.receive(block, 1, 1, 1);
    started.arrive_and_wait();
  });
  ASSERT_TRUE(pending->done());
  EXPECT_FALSE(pending->status().ok());
}

TEST_P(FailureTest, TheFailureOfOneGroupLeavesAnotherAlone) {
  MemoryStore store;
  std::barrier has_failed(3);
  run_threads(3, [&](int rank) {
    auto first = options(), second = options();
    first.name = "first";
    second.name = "second";
    auto const failing = Group::connect(rank, 3, store, first);
    auto const healthy = Group::connect(rank, 3, store, second);
    if (rank == 0) failing->admin().abort("only this one");
    for (Deadline const deadline = Clock::now() + seconds(10);
         failing->monitor().health().ok() && Clock::now() < deadline;) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_FALSE(failing->monitor().health().ok()) << "rank " << rank;
    has_failed.arrive_and_wait();
    for (std::uint64_t number = 0; number < 10; ++number) {
      Exchange exchange(rank, 3, number, uneven_sizes(number, 9000));
      exchange.start(*healthy);
      exchange.finish(*healthy);
    }
    EXPECT_TRUE(healthy->monitor().health().ok());
  });
}

TEST_P(FailureTest, BadOptionsAreUsageErrorsThatNameTheOption) {
  MemoryStore store;
  auto const error_of = [&](auto change, int rank = 0, int size = 2) -> std::string {
    auto bad = options();
    bad.connect_timeout = milliseconds(100);
    change(bad);
    try {
      Group::connect(rank, size, store, bad);
    } catch (UsageError const& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(error_of([](auto& bad) { bad.max_lag = -1; }).find("max_lag"), std::string::npos);
  EXPECT_NE(error_of([](auto& bad) { bad.max_lag = 3, bad.max_lag_limit = 2; }).find("max_lag_limit"),
            std::string::npos);
  EXPECT_NE(error_of([](auto& bad) { bad.num_channels = 0; }).find("num_channels"), std::string::npos);
  EXPECT_NE(error_of([](auto& bad) { bad.num_channels = 65; }).find("num_channels"), std::string::npos);
  EXPECT_NE(error_of([](auto&) {}, 2, 2).find("rank 2"), std::string::npos);
  EXPECT_NE(error_of([](auto&) {}, -1, 2).find("rank -1"), std::string::npos);
}

HEADWAY_TEST_GROUPS(FailureTest);

}  // namespace
}  // namespace headway::comm
