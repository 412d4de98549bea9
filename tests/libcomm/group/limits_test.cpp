// SPDX-License-Identifier: Apache-2.0

// Sizes, counts and times at the limits of the library's integers. send() and receive() take a block, the peer, the
// match (tag) and the data type.

#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

/// Groups at the limits of sizes and counts.
class LimitsTest : public testing::Test {
 protected:
  /// Error of connecting `size` ranks with `options`.
  static std::string refusal_of(GroupOptions const& options, int size) {
    MemoryStore store;
    try {
      static_cast<void>(Group::connect(0, size, store, options));
    } catch (UsageError const& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  /// Runs `body(group)` on two ranks of transport inproc.
  template <typename Body>
  static void run_pair(GroupOptions options, Body const& body) {
    options.transport = Transport::kInproc;
    MemoryStore store;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] { body(*Group::connect(rank, 2, store, options)); });
    }
  }

  static void finish(Group& group, OperationPtr const& operation) {
    Status const status = group.wait(*operation);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  /// Seconds in which rank 0 starts `count` exchanges without waiting for any of them.
  static double seconds_to_start(std::size_t count) {
    double seconds = 0;
    GroupOptions options;
    options.max_lag = 2;
    run_pair(options, [&](Group& group) {
      std::vector<std::byte> source(2), output(2 * count);
      std::vector<OperationPtr> operations;
      std::vector<std::span<std::byte const>> const sends{std::span(source).first(1), std::span(source).last(1)};
      auto const start = Clock::now();
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<std::span<std::byte>> const receives{std::span(output).subspan(2 * i, 1),
                                                         std::span(output).subspan(2 * i + 1, 1)};
        operations.push_back(group.all_to_all_v({.sends = sends, .receives = receives}));
      }
      if (group.rank() == 0) seconds = std::chrono::duration<double>(Clock::now() - start).count();
      for (auto const& operation : operations) finish(group, operation);
    });
    return seconds;
  }
};

TEST_F(LimitsTest, AReceiveMemoryThatCannotBeCountedIsRefusedAndNamesTheOption) {
  for (std::size_t const slot_bytes :
       {std::size_t{1} << 30, std::size_t{70'000'000'000}, std::size_t{1} << 62, PeerTraits::kNoLimit}) {
    GroupOptions options;
    options.max_lag = 8;
    options.slot_bytes = slot_bytes;
    options.num_channels = 2;
    auto const text = refusal_of(options, 8);
    EXPECT_NE(text.find("slot_bytes"), std::string::npos) << text;
  }
}

TEST_F(LimitsTest, TheLongestTimeoutsThereAreMeanWithoutEnd) {
  for (milliseconds const timeout : {milliseconds::max(), milliseconds(std::chrono::hours(24 * 365 * 300))}) {
    GroupOptions options;
    options.timeout = options.connect_timeout = timeout;
    run_pair(options, [&](Group& group) {
      if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
      auto const operation = group.barrier();
      Status const status = group.wait(*operation, timeout);
      EXPECT_TRUE(status.ok()) << status.message();
      group.admin().set_timeout(timeout);
      finish(group, group.barrier());
    });
  }
}

// The transfer of a message that does not fit a point-to-point slot (8 KiB) has a 16-bit number.
TEST_F(LimitsTest, MoreLargeMessagesToOnePeerThanThereAreNumbersAllArrive) {
  constexpr std::size_t kMessages = (std::size_t{1} << 16) + 200, kBytes = 9000;
  run_pair(GroupOptions(), [](Group& group) {
    std::vector<std::byte> block(kBytes);
    if (group.rank() == 0) {
      std::vector<OperationPtr> sends;
      for (std::size_t i = 0; i < kMessages; ++i) sends.push_back(group.send(block, 1, 7, 0));
      finish(group, group.send(std::span<std::byte const>(), 1, 8, 0));
      for (auto const& send : sends) finish(group, send);
      return;
    }
    std::vector<OperationPtr> receives;
    for (std::size_t i = 0; i < kMessages; ++i) receives.push_back(group.receive(block, 0, 7, 0));
    for (auto const& receive : receives) finish(group, receive);
    finish(group, group.receive(std::span<std::byte>(), 0, 8, 0));
  });
}

TEST_F(LimitsTest, StartingTakesAsLongForEachOfManyExchanges) {
  double best_ratio = 1e9;
  for (int attempt = 0; attempt < 3; ++attempt) {
    double const few = seconds_to_start(5000), many = seconds_to_start(40000);
    best_ratio = std::min(best_ratio, many / few);
  }
  EXPECT_LT(best_ratio, 24) << "8 times as many exchanges: linear is 8, quadratic 64";
}

}  // namespace
}  // namespace headway::comm
