// SPDX-License-Identifier: Apache-2.0

// Callbacks of operations: time, thread, and allowed calls. send() and receive() take a block, the peer, the match
// (tag) and the data type.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Callbacks of operations. Some tests use two groups, so that one could disturb the other.
class CallbackTest : public GroupTest {
 protected:
  /// Shared: a promise must outlive set_value(), which may still run when its future is ready.
  using Signal = std::shared_ptr<std::promise<void>>;
  static Signal make_signal() { return std::make_shared<std::promise<void>>(); }

  /// Two groups of rank `rank`, each with two ranks.
  struct TwoGroups {
    TwoGroups(int rank, Store& store, GroupOptions options) {
      options.name = "first";
      first = Group::connect(rank, 2, store, options);
      options.name = "second";
      second = Group::connect(rank, 2, store, options);
    }
    std::unique_ptr<Group> first, second;
  };

  /// Rank 0 runs `receiver(groups, operation, is_ready)`. Rank 1 sends the operation's message once `is_ready` is set.
  template <typename Receiver>
  static void run_with_late_message(Receiver receiver) {
    MemoryStore store;
    std::promise<void> is_ready, is_over;  // Declared here to outlive both threads.
    run_threads(2, [&](int rank) {
      TwoGroups groups(rank, store, options());
      std::vector<std::byte> block(8);
      if (rank == 0) {
        auto const operation = groups.first->receive(block, 1, 1, 0);
        receiver(groups, *operation, is_ready);
        is_over.set_value();
        return;
      }
      is_ready.get_future().wait();
      finish(*groups.first, groups.first->send(block, 0, 1, 0));
      is_over.get_future().wait();
    });
  }
};

TEST_P(CallbackTest, ACallbackMayDestroyAnotherGroup) {
  run_with_late_message([](TwoGroups& groups, Operation& operation, std::promise<void>& is_ready) {
    Signal const returned = make_signal();
    groups.first->on_done(operation, [&groups, returned] {
      groups.second.reset();
      returned->set_value();
    });
    is_ready.set_value();
    EXPECT_EQ(returned->get_future().wait_for(seconds(20)), std::future_status::ready);
  });
}

TEST_P(CallbackTest, ACallbackMayDestroyItsOwnGroup) {
  run_with_late_message([](TwoGroups& groups, Operation& operation, std::promise<void>& is_ready) {
    Signal const returned = make_signal();
    groups.first->on_done(operation, [&groups, returned] {
      groups.first.reset();
      returned->set_value();
    });
    is_ready.set_value();
    EXPECT_EQ(returned->get_future().wait_for(seconds(20)), std::future_status::ready);
  });
}

TEST_P(CallbackTest, ACallbackThatThrowsMayOwnItsGroup) {
  run_with_late_message([](TwoGroups& groups, Operation& operation, std::promise<void>& is_ready) {
    Signal const destroyed = make_signal();
    /// Signals after it has destroyed its group.
    struct Owner {
      std::unique_ptr<Group> group;
      Signal destroyed;
      ~Owner() {
        group.reset();
        destroyed->set_value();
      }
    };
    Group& first = *groups.first;
    auto owner = std::make_shared<Owner>(std::move(groups.first), destroyed);
    first.on_done(operation, [kept = std::exchange(owner, nullptr)] { throw std::runtime_error("in a callback"); });
    is_ready.set_value();
    EXPECT_EQ(destroyed->get_future().wait_for(seconds(20)), std::future_status::ready);
  });
}

TEST_P(CallbackTest, ACallbackMayUseItsGroupWhileThatIsDestroyed) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    std::string seen;
    {
      auto const group = Group::connect(rank, 2, store, options());
      std::vector<std::byte> block(8);
      auto const operation = group->receive(block, 1 - rank, 1, 0);  // No rank sends this message.
      group->on_done(*operation, [&] {
        std::this_thread::sleep_for(milliseconds(20));
        seen = std::string(group->monitor().health().message());
      });
    }
    EXPECT_NE(seen.find("destroyed"), std::string::npos) << seen;
  });
}

TEST_P(CallbackTest, ACallbackThatBlocksDelaysNoOtherGroup) {
  run_with_late_message([](TwoGroups& groups, Operation& operation, std::promise<void>& is_ready) {
    Signal const began = make_signal(), may_end = make_signal();
    groups.first->on_done(operation, [began, may_end] {
      began->set_value();
      may_end->get_future().wait_for(seconds(20));
    });
    is_ready.set_value();
    ASSERT_EQ(began->get_future().wait_for(seconds(20)), std::future_status::ready);
    auto const start = Clock::now();
    groups.second.reset();
    EXPECT_LT(Clock::now() - start, seconds(5));
    may_end->set_value();
  });
}

TEST_P(CallbackTest, DestroyingAGroupWaitsForItsCallbacks) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    bool was_called = false;
    {
      auto const group = Group::connect(rank, 2, store, options());
      std::vector<std::byte> block(8);
      auto const operation = group->receive(block, 1 - rank, 1, 0);  // No rank sends this message.
      group->on_done(*operation, [&] {
        std::this_thread::sleep_for(milliseconds(20));
        was_called = true;
      });
    }
    EXPECT_TRUE(was_called) << "rank " << rank;
  });
}

TEST_P(CallbackTest, ACallbackOfAnExchangeComesInTimeWhereNobodyWaits) {
  // Far below the 50 ms interval at which the progress thread checks deadlines.
  constexpr int kRounds = 200;
  std::vector<Clock::duration> times;
  run_ranks(2, options(), [&](Group& group) {
    for (int round = 0; round < kRounds; ++round) {
      auto const start = Clock::now();
      Exchange exchange(group.rank(), 2, static_cast<std::uint64_t>(round), even_sizes(64));
      auto const operation = exchange.start(group);
      Signal const called = make_signal();
      group.on_done(*operation, [called] { called->set_value(); });
      ASSERT_EQ(called->get_future().wait_for(seconds(20)), std::future_status::ready);
      if (group.rank() == 0) times.push_back(Clock::now() - start);
      exchange.finish(group);
    }
  });
  std::ranges::sort(times);
  ASSERT_EQ(times.size(), kRounds);
  EXPECT_LT(times[kRounds / 2], milliseconds(2)) << "median";
  EXPECT_LT(times[kRounds * 9 / 10], milliseconds(25)) << "p90";
}

TEST_P(CallbackTest, AReceiveWithACallbackLetsItsRankSleep) {
  if (options().wrap_checked) GTEST_SKIP() << "`checked` delays notifications, so it has to look for them";
  std::atomic<std::int64_t> num_switches = 0;
  run_ranks(2, options(), [&](Group& group) {
    std::vector<std::byte> block(8);
    auto const receive = group.receive_any(block, 1, 0);
    Signal const called = make_signal();
    group.on_done(*receive, [called] { called->set_value(); });
    std::this_thread::sleep_for(milliseconds(100));  // The progress thread watches for some rounds.
    auto const count = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return usage.ru_nvcsw;
    };
    auto const before = count();
    std::this_thread::sleep_for(milliseconds(400));
    if (group.rank() == 0) num_switches = count() - before;
    std::vector<std::byte> const message(8);
    finish(group, group.send(message, 1 - group.rank(), 1, 0));
    ASSERT_EQ(called->get_future().wait_for(seconds(20)), std::future_status::ready);
  });
  // A rank that polls every 2 ms would switch 200 times.
  EXPECT_LT(num_switches, 100);
}

HEADWAY_TEST_GROUPS(CallbackTest);

}  // namespace
}  // namespace headway::comm
