// SPDX-License-Identifier: Apache-2.0

// Channels of a group with bounds of their own.
//
// The bound (max_lag) of a channel says how many exchanges a rank may post (send) beyond the first that is not
// complete. An exchange that was started but may not be posted yet is queued.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::microseconds;

/// Channels of one group with different bounds.
class ChannelBoundsTest : public GroupTest {
 protected:
  static GroupOptions two_channels(int max_lag_limit) {
    auto options = GroupTest::options();
    options.num_channels = 2;
    options.max_lag_limit = max_lag_limit;
    return options;
  }

  static std::vector<Exchange> make_exchanges(Group const& group, int channel, std::uint64_t count) {
    std::vector<Exchange> exchanges;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t const number = static_cast<std::uint64_t>(channel) * 1000 + i;
      exchanges.emplace_back(group.rank(), group.size(), number, even_sizes(500));
    }
    return exchanges;
  }

  /// Number of all-to-alls per channel that are posted or completed.
  static std::array<int, 2> num_posted(Group& group) {
    std::array<int, 2> count{};
    for (auto const& record : group.monitor().flight_records()) {
      if (record.state != FlightState::kQueued) ++count.at(static_cast<std::size_t>(record.channel));
    }
    return count;
  }

  static std::array<int, 2> bounds_of(Group& group) { return {group.admin().max_lag(0), group.admin().max_lag(1)}; }

  /// Runs a loop on one channel that keeps as many exchanges pending as the recommended bound. It sleeps
  /// `delay_us(step)` before each exchange.
  static void follow(Group& group, int channel, std::function<int(int step)> const& delay_us) {
    std::deque<Exchange> exchanges;
    for (int step = 0; step < 120; ++step) {
      std::this_thread::sleep_for(microseconds(delay_us(step)));
      exchanges.emplace_back(group.rank(), group.size(), static_cast<std::uint64_t>(step), even_sizes(500))
          .start(group, channel);
      int const bound = group.monitor().recommended_max_lag(channel);
      group.admin().set_max_lag(bound, channel);
      while (static_cast<int>(exchanges.size()) > bound) {
        exchanges.front().finish(group);
        exchanges.pop_front();
      }
    }
    for (auto& exchange : exchanges) exchange.finish(group);
  }
};

TEST_P(ChannelBoundsTest, EachChannelPostsAsFarAsItsOwnBound) {
  constexpr std::uint64_t kCount = 5;
  using Bounds = std::array<int, 2>;
  for (auto const& [ahead, behind] : {std::pair<Bounds, Bounds>{{0, 2}, {3, 1}}, {{3, 1}, {0, 2}}}) {
    std::barrier in_step(2);
    run_ranks(2, two_channels(3), [&](Group& group) {
      bool const is_ahead = group.rank() == 0;
      Bounds const bounds = is_ahead ? ahead : behind;
      for (int channel : {0, 1}) group.admin().set_max_lag(bounds.at(static_cast<std::size_t>(channel)), channel);
      EXPECT_EQ(bounds_of(group), bounds);
      auto first = make_exchanges(group, 0, kCount), second = make_exchanges(group, 1, kCount);
      auto const start_both = [&] {
        for (auto& exchange : first) exchange.start(group, 0);
        for (auto& exchange : second) exchange.start(group, 1);
      };
      if (is_ahead) {
        start_both();
        EXPECT_EQ(num_posted(group), (Bounds{bounds[0] + 1, bounds[1] + 1})) << "the other rank has started none";
        EXPECT_EQ(group.monitor().stats().queued, 2 * kCount - 2 - static_cast<std::uint64_t>(bounds[0] + bounds[1]));
      }
      in_step.arrive_and_wait();
      if (!is_ahead) second.front().start(group, 1);
      in_step.arrive_and_wait();
      if (is_ahead) {
        second.front().finish(group);
        EXPECT_EQ(num_posted(group), (Bounds{bounds[0] + 1, bounds[1] + 2})) << "an exchange of channel 1 is complete";
      }
      in_step.arrive_and_wait();
      if (!is_ahead) {
        for (auto& exchange : first) exchange.start(group, 0);
        for (std::size_t i = 1; i < kCount; ++i) second[i].start(group, 1);
      }
      for (auto& exchange : first) exchange.finish(group);
      for (auto& exchange : second) exchange.finish(group);
    });
  }
}

TEST_P(ChannelBoundsTest, ABoundMayBeRaisedForOneChannelOrForAll) {
  std::barrier rank_0_is_ahead(2);
  run_ranks(2, two_channels(3), [&](Group& group) {
    auto first = make_exchanges(group, 0, 4), second = make_exchanges(group, 1, 4);
    if (group.rank() == 1) rank_0_is_ahead.arrive_and_wait();
    for (auto& exchange : first) exchange.start(group, 0);
    for (auto& exchange : second) exchange.start(group, 1);
    if (group.rank() == 0) {
      EXPECT_EQ(num_posted(group), (std::array{1, 1}));
      group.admin().set_max_lag(2, 1);
      EXPECT_EQ(num_posted(group), (std::array{1, 3}));
      group.admin().set_max_lag(1);
      EXPECT_EQ(num_posted(group), (std::array{2, 3}));
      EXPECT_EQ(bounds_of(group), (std::array{1, 1}));
      rank_0_is_ahead.arrive_and_wait();
    }
    for (auto& exchange : first) exchange.finish(group);
    for (auto& exchange : second) exchange.finish(group);
  });
}

TEST_P(ChannelBoundsTest, AWrongChannelOrBoundIsNamedAndChangesNothing) {
  auto options = two_channels(3);
  options.max_lag = 1;
  run_ranks(2, options, [](Group& group) {
    auto const error_of = [&](auto const& call) -> std::string {
      try {
        call();
      } catch (UsageError const& error) {
        return error.what();
      }
      return "no error";
    };
    std::string const no_channel_2 = "the group has no channel 2, num_channels is 2";
    EXPECT_EQ(error_of([&] { group.admin().set_max_lag(3, 2); }), "set_max_lag: " + no_channel_2);
    EXPECT_EQ(error_of([&] { static_cast<void>(group.admin().max_lag(2)); }), "max_lag: " + no_channel_2);
    EXPECT_EQ(error_of([&] { static_cast<void>(group.monitor().recommended_max_lag(2)); }),
              "recommended_max_lag: " + no_channel_2);
    EXPECT_EQ(error_of([&] { group.admin().set_max_lag(3, -1); }),
              "set_max_lag: the group has no channel -1, num_channels is 2");
    EXPECT_EQ(error_of([&] { group.admin().set_max_lag(4, 1); }), "max_lag 4 is outside 0 to max_lag_limit 3");
    EXPECT_EQ(error_of([&] { group.admin().set_max_lag(-1, 0); }), "max_lag -1 is outside 0 to max_lag_limit 3");
    EXPECT_EQ(bounds_of(group), (std::array{1, 1}));
  });
}

TEST_P(ChannelBoundsTest, ChannelsOfDifferentLoadAdaptEachForItself) {
  auto adapting = two_channels(4);
  adapting.adapt_lag = true;
  run_ranks(3, adapting, [](Group& group) {
    run_threads_of_rank(2, [&](int channel) {
      std::mt19937 random(static_cast<unsigned>(group.rank()));
      std::uniform_int_distribution<int> any_delay_us(0, 4000);
      bool const is_straggler = group.rank() == 2;
      if (channel == 0) follow(group, 0, [&](int) { return is_straggler ? 12'000 : 0; });
      if (channel == 1) follow(group, 1, [&](int) { return any_delay_us(random); });
    });
    // Lag does not help against a straggler, apart from the jitter of a loaded host. It helps against random delays.
    EXPECT_LT(group.admin().max_lag(0), group.admin().max_lag(1));
  });
}

TEST_P(ChannelBoundsTest, WaitingForAnotherChannelIsNotWork) {
  auto adapting = two_channels(4);
  adapting.adapt_lag = true;
  run_ranks(2, adapting, [](Group& group) {
    // The ranks are late in turn. Waiting for channel 1 makes both start on channel 0 at the same times.
    std::deque<Exchange> ahead;
    for (std::uint64_t step = 0; step < 80; ++step) {
      bool const is_late = step / 2 % 2 == static_cast<std::uint64_t>(group.rank());
      if (is_late) std::this_thread::sleep_for(microseconds(3000));
      Exchange in_step(group.rank(), 2, step, even_sizes(500));
      in_step.start(group, 1);
      in_step.finish(group);
      ahead.emplace_back(group.rank(), 2, step, even_sizes(500)).start(group, 0);
      if (ahead.size() <= 4) continue;
      ahead.front().finish(group);
      ahead.pop_front();
    }
    for (auto& exchange : ahead) exchange.finish(group);
    EXPECT_GT(group.monitor().recommended_max_lag(0), 0);
  });
}

TEST_P(ChannelBoundsTest, AShrunkGroupKeepsTheBoundOfEachChannel) {
  run_ranks(3, two_channels(3), [](Group& group) {
    group.admin().set_max_lag(group.rank(), 1);
    std::array const bounds{0, group.rank()};
    if (group.rank() == 2) return;
    auto const shrunk = group.admin().shrink({}, std::chrono::seconds(20));
    EXPECT_EQ(bounds_of(*shrunk.group), bounds);
    finish(*shrunk.group, shrunk.group->barrier());
  });
}

HEADWAY_TEST_GROUPS(ChannelBoundsTest);

}  // namespace
}  // namespace headway::comm
