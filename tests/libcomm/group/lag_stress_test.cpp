// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "random_rounds.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

/// Random streams of exchanges on the real transports, at the speed of the host. ../stress/all_to_all_stress.cpp
/// tests the exchange itself under every order of events that a seed can make. This test covers the layers below:
/// transports, threads and sleep.
class LagStressTest : public GroupTest {
 protected:
  /// Random settings of one round.
  struct Plan {
    int size;
    std::size_t max_bytes;
    std::uint64_t exchanges;  ///< Number of exchanges per channel.
    std::uint64_t seed;
    GroupOptions options;
  };

  static Plan draw_plan(RandomRounds::Random& random) {
    constexpr std::array<std::size_t, 4> kMaxBytes = {100, 4096, 9000, 150000};
    Plan plan{.size = static_cast<int>(draw(random, 2, 4)),
              .max_bytes = kMaxBytes[draw(random, 0, kMaxBytes.size() - 1)],
              .exchanges = draw(random, 20, 80),
              .seed = random(),
              .options = options()};
    plan.options.max_lag = plan.options.max_lag_limit = static_cast<int>(draw(random, 0, 4));
    plan.options.num_channels = static_cast<int>(draw(random, 1, 3));
    // With 0, blocks from min_get_bytes on are announced (RTS) under a bound above 0 too.
    plan.options.get_footprint = draw(random, 0, 1) * plan.options.get_footprint;
    plan.options.min_get_bytes = draw(random, 0, 1) == 0 ? 1024 : plan.options.min_get_bytes;
    return plan;
  }

  /// Runs one rank: it waits, tests, pauses and changes its bounds at random. All ranks use the channels in the same
  /// order. Otherwise each might wait for an exchange that another rank starts only after its own wait.
  static void run_rank(Group& group, Plan const& plan) {
    RandomRounds::Random order(plan.seed), random(plan.seed + 1 + static_cast<std::uint64_t>(group.rank()));
    auto const num_channels = static_cast<std::size_t>(plan.options.num_channels);
    std::vector<std::deque<Exchange>> pending(num_channels);
    std::vector<std::uint64_t> num_started(num_channels);
    auto const max_in_flight = draw(random, 1, 6);
    for (std::uint64_t left = num_channels * plan.exchanges; left > 0;) {
      std::size_t channel = draw(order, 0, num_channels - 1);
      while (num_started[channel] == plan.exchanges) channel = (channel + 1) % num_channels;
      auto& flying = pending[channel];
      auto const number = num_started[channel]++ * num_channels + channel;
      flying.emplace_back(group.rank(), group.size(), number, uneven_sizes(number + plan.seed % 1000, plan.max_bytes))
          .start(group, static_cast<int>(channel));
      --left;
      disturb(group, random, *flying.back().operation());
      while (flying.size() > max_in_flight) finish_first(group, flying);
    }
    for (auto& flying : pending) {
      while (!flying.empty()) finish_first(group, flying);
    }
  }

  static void finish_first(Group& group, std::deque<Exchange>& flying) {
    flying.front().finish(group);
    flying.front().scribble();
    flying.pop_front();
  }

  /// One channel, or none for all channels.
  static std::optional<int> draw_channel(Group const& group, RandomRounds::Random& random) {
    int const channel = static_cast<int>(draw(random, 0, static_cast<std::uint64_t>(group.options().num_channels))) - 1;
    return channel < 0 ? std::nullopt : std::optional(channel);
  }

  /// Sleeps, changes a bound or tests an operation, or does nothing.
  static void disturb(Group& group, RandomRounds::Random& random, Operation& newest) {
    auto const limit = static_cast<std::uint64_t>(group.options().max_lag_limit);
    switch (draw(random, 0, 9)) {
      case 0:
        return std::this_thread::sleep_for(draw_delay(random, {}, std::chrono::milliseconds(3)));
      case 1:
        return group.admin().set_max_lag(static_cast<int>(draw(random, 0, limit)), draw_channel(group, random));
      case 2:
        group.test(newest);
        return;
      default:
        return;
    }
  }
};

TEST_P(LagStressTest, EveryByteOfRandomExchangesIsRight) {
  RandomRounds::run(10, [](RandomRounds::Random& random) {
    Plan const plan = draw_plan(random);
    SCOPED_TRACE(testing::Message() << plan.size << " ranks, blocks to " << plan.max_bytes << " bytes, bound "
                                    << plan.options.max_lag << ", " << plan.options.num_channels << " channels");
    run_ranks(plan.size, plan.options, [&](Group& group) { run_rank(group, plan); });
  });
}

HEADWAY_TEST_GROUPS(LagStressTest);

}  // namespace
}  // namespace headway::comm
