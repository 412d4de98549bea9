// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <latch>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Groups that continue after a failure: shrink() makes a group of the ranks that are left, and tells how many
/// operations all of them have completed: all-to-alls by channel, and other collectives. Its first argument lists ranks
/// to leave out, besides lost ones. Ranks that do not call it within its timeout are left out too.
class ShrinkTest : public GroupTest {
 protected:
  static constexpr seconds kTimeout{20};

  /// Runs exchanges that a group of this size must be able to do.
  static void expect_works(Group& group) {
    for (std::uint64_t number = 0; number < 3; ++number) {
      Exchange exchange(group.rank(), group.size(), number, even_sizes(3000));
      exchange.start(group);
      exchange.finish(group);
    }
    finish(group, group.barrier());
  }

  /// Runs ahead by two until the group fails or `most` exchanges are done. @returns the number of completed exchanges.
  static std::uint64_t exchange_until_failure(Group& group, std::uint64_t most = 1'000'000) {
    std::deque<Exchange> pending;
    std::uint64_t num_completed = 0;
    auto const finish_oldest = [&] {
      pending.front().finish(group);
      pending.pop_front();
      ++num_completed;
    };
    try {
      for (std::uint64_t number = 0; number < most; ++number) {
        pending.emplace_back(group.rank(), group.size(), number, even_sizes(200)).start(group);
        if (pending.size() == 3) finish_oldest();
      }
      while (!pending.empty()) finish_oldest();
    } catch (OperationError const&) {
      for (auto const& each : pending) num_completed += each.operation() && group.wait(*each.operation()).ok() ? 1 : 0;
    }
    return num_completed;
  }
};

TEST_P(ShrinkTest, TheOthersGoOnWithoutAnyRank) {
  auto with_lag = options();
  with_lag.max_lag = 2;
  for (int leaver = 0; leaver < 4; ++leaver) {
    std::array<std::uint64_t, 4> completed{};
    std::array<std::uint64_t, 4> resumed{};
    run_ranks(4, with_lag, [&](Group& group) {
      auto const rank = static_cast<std::size_t>(group.rank());
      if (group.rank() == leaver) {
        exchange_until_failure(group, 20);
        return;
      }
      completed[rank] = exchange_until_failure(group);
      auto shrunk = group.admin().shrink({}, kTimeout);
      std::vector<int> expected{0, 1, 2, 3};
      std::erase(expected, leaver);
      EXPECT_EQ(shrunk.ranks, expected);
      EXPECT_EQ(shrunk.group->size(), 3);
      EXPECT_EQ(shrunk.ranks[static_cast<std::size_t>(shrunk.group->rank())], group.rank());
      ASSERT_EQ(shrunk.all_to_alls.size(), 1U);
      resumed[rank] = shrunk.all_to_alls[0];
      expect_works(*shrunk.group);
    });
    completed[static_cast<std::size_t>(leaver)] = ~std::uint64_t{0};  // The minimum is that of the other ranks.
    resumed[static_cast<std::size_t>(leaver)] = std::ranges::min(completed);
    EXPECT_EQ(std::ranges::count(resumed, std::ranges::min(completed)), 4);
  }
}

TEST_P(ShrinkTest, TwoRanksMayBeLostAtOnceAndThoseLeftAgain) {
  std::latch all_work(3);
  run_ranks(5, options(), [&](Group& group) {
    if (group.rank() == 0 || group.rank() == 3) {
      exchange_until_failure(group, 10);
      return;
    }
    exchange_until_failure(group);
    auto first = group.admin().shrink({}, kTimeout);
    ASSERT_EQ(first.ranks, (std::vector<int>{1, 2, 4}));
    expect_works(*first.group);
    all_work.arrive_and_wait();
    if (group.rank() == 2) {
      first.group.reset();
      return;
    }
    exchange_until_failure(*first.group);
    auto second = first.group->admin().shrink({}, kTimeout);
    EXPECT_EQ(second.ranks, (std::vector<int>{0, 2}));
    expect_works(*second.group);
  });
}

TEST_P(ShrinkTest, ARankMayBeLostWhileTheOthersAgree) {
  for (int round = 0; round < 5; ++round) {
    run_ranks(5, options(), [&](Group& group) {
      if (group.rank() == 4) {
        exchange_until_failure(group, 5);
        return;
      }
      exchange_until_failure(group);
      if (group.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(round));
        return;
      }
      auto shrunk = group.admin().shrink({}, kTimeout);
      EXPECT_EQ(shrunk.ranks, (std::vector<int>{0, 2, 3}));
      expect_works(*shrunk.group);
    });
  }
}

TEST_P(ShrinkTest, ASilentRankIsLeftOutAndGetsAnErrorWhenItWakes) {
  std::latch others_are_done(2);
  run_ranks(3, options(), [&](Group& group) {
    if (group.rank() == 1) {
      others_are_done.wait();
      Exchange exchange(1, 3, 0, even_sizes(100));
      EXPECT_THROW(
          {
            exchange.start(group);
            exchange.finish(group);
          },
          OperationError);
      try {
        static_cast<void>(group.admin().shrink({}, kTimeout));
        ADD_FAILURE() << "rank 1 made a group of its own";
      } catch (OperationError const& error) {
        EXPECT_TRUE(std::string_view(error.what()).find("without rank 1") != std::string_view::npos) << error.what();
      }
      return;
    }
    auto shrunk = group.admin().shrink({}, milliseconds(300));
    EXPECT_EQ(shrunk.ranks, (std::vector<int>{0, 2}));
    expect_works(*shrunk.group);
    others_are_done.count_down();
  });
}

TEST_P(ShrinkTest, AHealthyGroupMayLeaveRanksOut) {
  std::latch all_are_ready(3), others_are_done(2);
  run_ranks(3, options(), [&](Group& group) {
    finish(group, group.barrier());
    finish(group, group.barrier());
    all_are_ready.arrive_and_wait();
    if (group.rank() == 2) {
      others_are_done.wait();
      return;
    }
    auto const began = Clock::now();
    auto shrunk = group.admin().shrink(std::array{2}, kTimeout);
    EXPECT_LT(Clock::now() - began, seconds(10)) << "nobody waits for a rank that is left out";
    EXPECT_EQ(shrunk.ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(shrunk.collectives, 2U);
    EXPECT_FALSE(group.monitor().health().ok());
    expect_works(*shrunk.group);
    others_are_done.count_down();
  });
}

TEST_P(ShrinkTest, TheLastRankGoesOnAlone) {
  run_ranks(3, options(), [&](Group& group) {
    if (group.rank() != 1) {
      exchange_until_failure(group, 5);
      return;
    }
    exchange_until_failure(group);
    auto shrunk = group.admin().shrink({}, kTimeout);
    EXPECT_EQ(shrunk.ranks, (std::vector<int>{1}));
    expect_works(*shrunk.group);
  });
}

TEST_P(ShrinkTest, BadArgumentsAreUsageErrors) {
  run_ranks(2, options(), [&](Group& group) {
    EXPECT_THROW(static_cast<void>(group.admin().shrink(std::array{group.rank()}, kTimeout)), UsageError);
    EXPECT_THROW(static_cast<void>(group.admin().shrink(std::array{2}, kTimeout)), UsageError);
    EXPECT_THROW(static_cast<void>(group.admin().shrink({}, seconds(0))), UsageError);
    expect_works(group);
  });
}

HEADWAY_TEST_GROUPS(ShrinkTest);

}  // namespace
}  // namespace headway::comm
