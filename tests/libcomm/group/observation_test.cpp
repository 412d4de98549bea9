// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

/// Statistics, traces and callbacks. The bound (max_lag) says how many exchanges a rank may post beyond the first that
/// is not complete; the lag of an exchange is how many later ones were posted when it completed. send() and receive()
/// take a block, the peer, the match (tag) and the data type.
class ObservationTest : public GroupTest {
 protected:
  static void run_exchange(Group& group, std::uint64_t number, SizeOf const& size_of) {
    Exchange exchange(group.rank(), group.size(), number, size_of);
    exchange.start(group);
    exchange.finish(group);
  }
  static std::uint64_t sum(std::vector<std::uint64_t> const& values) {
    return std::accumulate(values.begin(), values.end(), std::uint64_t{0});
  }
};

TEST_P(ObservationTest, BytesAndMessagesAreCountedByPeer) {
  run_ranks(3, options(), [](Group& group) {
    auto const size_of = [](int source, int destination) -> std::size_t {
      return static_cast<std::size_t>(1000 * source + 100 * destination);
    };
    for (std::uint64_t number = 0; number < 5; ++number) run_exchange(group, number, size_of);
    auto const stats = group.monitor().stats();
    ASSERT_EQ(stats.peers.size(), 3u);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == group.rank()) continue;
      auto const& of_peer = stats.peers[static_cast<std::size_t>(peer)];
      EXPECT_EQ(of_peer.bytes_sent, 5 * size_of(group.rank(), peer));
      EXPECT_EQ(of_peer.bytes_received, 5 * size_of(peer, group.rank()));
      EXPECT_EQ(of_peer.messages_sent, 5u);
      EXPECT_EQ(of_peer.messages_received, 5u);
    }
    EXPECT_EQ(stats.operations, 5u);
    EXPECT_EQ(sum(stats.lag_histogram), 5u);
    EXPECT_GT(stats.receive_buffer_bytes, 0u);
    EXPECT_EQ(stats.lag_lost, 0u);
  });
}

TEST_P(ObservationTest, BytesOfBlocksAboveASlotAreCountedToo) {
  run_ranks(2, options(), [](Group& group) {
    for (std::uint64_t number = 0; number < 3; ++number) run_exchange(group, number, even_sizes(100000));
    auto const stats = group.monitor().stats();
    auto const& of_peer = stats.peers[static_cast<std::size_t>(1 - group.rank())];
    EXPECT_EQ(of_peer.bytes_sent, 300000u);
    EXPECT_EQ(of_peer.bytes_received, 300000u);
  });
}

TEST_P(ObservationTest, RepeatedNotificationsAreDroppedAndCounted) {
  if (GetParam().fault_seed == 0) GTEST_SKIP() << "nothing is repeated without faults";
  std::atomic<std::uint64_t> repeated{0};
  run_ranks(3, options(), [&](Group& group) {
    for (std::uint64_t number = 0; number < 100; ++number) run_exchange(group, number, even_sizes(100));
    for (auto const& peer : group.monitor().stats().peers) repeated += peer.repeated_fragments;
  });
  EXPECT_GT(repeated, 0u);
}

TEST_P(ObservationTest, TheHistogramShowsHowManyLaterExchangesWerePosted) {
  auto with_lag = options();
  with_lag.max_lag = 2;
  std::barrier rank_0_is_ahead(2);
  run_ranks(2, with_lag, [&](Group& group) {
    std::vector<Exchange> exchanges;
    for (std::uint64_t number = 0; number < 3; ++number)
      exchanges.emplace_back(group.rank(), 2, number, even_sizes(500));
    if (group.rank() == 1) rank_0_is_ahead.arrive_and_wait();
    for (auto& exchange : exchanges) exchange.start(group);
    if (group.rank() == 0) rank_0_is_ahead.arrive_and_wait();
    for (auto& exchange : exchanges) exchange.finish(group);
    auto const histogram = group.monitor().stats().lag_histogram;
    EXPECT_EQ(sum(histogram), 3u);
    if (group.rank() == 0) {
      ASSERT_GE(histogram.size(), 3u);
      EXPECT_EQ(histogram[2], 1u) << "exchange 0 completed after 1 and 2 were posted";
    }
  });
}

TEST_P(ObservationTest, SynchronousExchangesHaveNoLag) {
  run_ranks(2, options(), [](Group& group) {
    for (std::uint64_t number = 0; number < 10; ++number) run_exchange(group, number, even_sizes(500));
    auto const histogram = group.monitor().stats().lag_histogram;
    ASSERT_FALSE(histogram.empty());
    EXPECT_EQ(histogram[0], 10u);
    EXPECT_EQ(sum(histogram), 10u);
  });
}

TEST_P(ObservationTest, WaitsAreChargedToThePeerThatCameLast) {
  std::barrier in_step(3);
  std::atomic<int> num_charging{0};
  run_ranks(3, options(), [&](Group& group) {
    bool has_charged = group.rank() == 2;
    // On a loaded host a rank may start its wait as late as rank 2 its exchange. Then the round is repeated.
    for (std::uint64_t number = 0; number < 20 && num_charging < 2; ++number) {
      group.monitor().reset_stats();
      Exchange exchange(group.rank(), 3, number, even_sizes(100));
      if (group.rank() != 2) exchange.start(group);
      in_step.arrive_and_wait();
      if (group.rank() == 2) {
        std::this_thread::sleep_for(milliseconds(300));
        exchange.start(group);
      }
      exchange.finish(group);
      auto const stats = group.monitor().stats();
      if (!has_charged && stats.peers[2].wait_s > 0.1) {
        EXPECT_LT(stats.peers[2].wait_s, 20);
        EXPECT_EQ(stats.peers[2].waits, 1u);
        EXPECT_EQ(stats.peers[static_cast<std::size_t>(1 - group.rank())].waits, 0u);
        auto const& by_lag = stats.wait_s_by_lag;
        EXPECT_NEAR(std::accumulate(by_lag.begin(), by_lag.end(), 0.0), stats.peers[2].wait_s, 1e-6);
        has_charged = true;
        ++num_charging;
      }
      in_step.arrive_and_wait();
    }
  });
  EXPECT_EQ(num_charging, 2);
}

TEST_P(ObservationTest, WaitsThatReachTheirLimitAreChargedToo) {
  run_ranks(2, options(), [](Group& group) {
    Exchange exchange(group.rank(), 2, 0, even_sizes(100));
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(400));
    auto const operation = exchange.start(group);
    if (group.rank() == 0) {
      int num_timeouts = 0;
      while (group.wait(*operation, milliseconds(50)).code() == StatusCode::kTimeout) ++num_timeouts;
      auto const stats = group.monitor().stats();
      // A host that is busy may have started this rank late, so the wait may be shorter than the other's sleep.
      EXPECT_GE(stats.peers[1].wait_s, 0.045 * num_timeouts);
      EXPECT_EQ(stats.peers[1].waits, num_timeouts > 0 ? 1u : stats.peers[1].waits);
    }
    exchange.finish(group);
  });
}

// lag_lost counts blocks larger than a slot, which cannot run ahead. queued counts exchanges that the bound held back.
TEST_P(ObservationTest, LagThatABlockAboveASlotCostsAndQueueingAreCounted) {
  auto with_lag = options();
  with_lag.max_lag = 1;
  std::barrier rank_0_is_ahead(2);
  run_ranks(2, with_lag, [&](Group& group) {
    run_exchange(group, 0, even_sizes(group.options().slot_bytes * 3));
    EXPECT_EQ(group.monitor().stats().lag_lost, 1u);
    group.monitor().reset_stats();
    EXPECT_EQ(group.monitor().stats().lag_lost, 0u);
    std::vector<Exchange> exchanges;
    for (std::uint64_t number = 1; number < 5; ++number)
      exchanges.emplace_back(group.rank(), 2, number, even_sizes(10));
    if (group.rank() == 1) rank_0_is_ahead.arrive_and_wait();
    for (auto& exchange : exchanges) exchange.start(group);
    if (group.rank() == 0) {
      EXPECT_EQ(group.monitor().stats().queued, 2u) << "4 were started, the bound admits 2";
      rank_0_is_ahead.arrive_and_wait();
    }
    for (auto& exchange : exchanges) exchange.finish(group);
  });
}

TEST_P(ObservationTest, ResetForgetsEverythingButTheMemory) {
  run_ranks(2, options(), [](Group& group) {
    run_exchange(group, 0, even_sizes(100));
    auto const receive_buffer_bytes = group.monitor().stats().receive_buffer_bytes;
    group.monitor().reset_stats();
    auto const stats = group.monitor().stats();
    EXPECT_EQ(stats.operations, 0u);
    EXPECT_EQ(sum(stats.lag_histogram), 0u);
    ASSERT_EQ(stats.peers.size(), 2u);
    EXPECT_EQ(stats.peers[static_cast<std::size_t>(1 - group.rank())].bytes_sent, 0u);
    EXPECT_EQ(stats.receive_buffer_bytes, receive_buffer_bytes);
  });
}

TEST_P(ObservationTest, ATraceHasEveryExchangeWithItsTimes) {
  run_ranks(2, options(), [](Group& group) {
    run_exchange(group, 0, even_sizes(10));
    group.monitor().set_trace_capacity(100);
    for (std::uint64_t number = 1; number <= 5; ++number) run_exchange(group, number, even_sizes(number * 1000));
    auto const events = group.monitor().drain_trace();
    ASSERT_EQ(events.size(), 5u);
    double last_completed_s = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      auto const& event = events[i];
      EXPECT_EQ(event.seq, i + 1);
      EXPECT_EQ(event.channel, 0);
      EXPECT_EQ(event.lag, 0);
      EXPECT_GE(event.started_s, last_completed_s);
      EXPECT_GE(event.posted_s, event.started_s);
      EXPECT_GE(event.completed_s, event.posted_s);
      last_completed_s = event.completed_s;
      // The own block may count or not. The block for the peer must count.
      EXPECT_GE(event.bytes_sent, (i + 1) * 1000);
      EXPECT_GE(event.bytes_received, (i + 1) * 1000);
      EXPECT_TRUE(event.last_peer == -1 || event.last_peer == 1 - group.rank()) << event.last_peer;
    }
    EXPECT_TRUE(group.monitor().drain_trace().empty());
    group.monitor().set_trace_capacity(0);
    run_exchange(group, 6, even_sizes(10));
    EXPECT_TRUE(group.monitor().drain_trace().empty());
  });
}

TEST_P(ObservationTest, ATraceNeverGrowsBeyondItsCapacity) {
  run_ranks(2, options(), [](Group& group) {
    group.monitor().set_trace_capacity(3);
    for (std::uint64_t number = 0; number < 10; ++number) run_exchange(group, number, even_sizes(10));
    EXPECT_EQ(group.monitor().drain_trace().size(), 3u);
  });
}

TEST_P(ObservationTest, ACallbackRunsOnceAndAfterItsOperationIsDone) {
  run_ranks(3, options(), [](Group& group) {
    for (std::uint64_t number = 0; number < 30; ++number) {
      std::atomic<int> early{0}, late{0};
      Exchange exchange(group.rank(), 3, number, uneven_sizes(number, 9000));
      auto const operation = exchange.start(group);
      group.on_done(*operation, [&] { early += operation->done() ? 1 : 100; });
      exchange.finish(group);
      group.on_done(*operation, [&] { late += operation->done() ? 1 : 100; });
      Deadline const deadline = Clock::now() + std::chrono::seconds(20);
      while ((early == 0 || late == 0) && Clock::now() < deadline) std::this_thread::yield();
      EXPECT_EQ(early, 1);
      EXPECT_EQ(late, 1);
    }
  });
}

TEST_P(ObservationTest, ACallbackRunsThoughNobodyWaits) {
  std::barrier all_called(3);
  run_ranks(3, options(), [&](Group& group) {
    for (std::size_t const bytes : {std::size_t{100}, std::size_t{200000}}) {
      std::atomic<bool> called{false};
      Exchange exchange(group.rank(), 3, bytes, even_sizes(bytes));
      auto const operation = exchange.start(group);
      group.on_done(*operation, [&] { called = true; });
      Deadline const deadline = Clock::now() + std::chrono::seconds(20);
      while (!called && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
      EXPECT_TRUE(called) << bytes << " bytes";
      exchange.finish(group);
    }
    all_called.arrive_and_wait();
  });
}

TEST_P(ObservationTest, CallbacksOfCollectivesAndMessagesRunToo) {
  run_ranks(2, options(), [](Group& group) {
    std::vector<std::byte> block(100), message(100);
    std::atomic<int> called{0};
    auto const message_operation = group.rank() == 0 ? group.send(message, 1, 1, 1) : group.receive(message, 0, 1, 1);
    for (auto const& operation : {group.broadcast(block, 0, 1), group.barrier(), message_operation}) {
      group.on_done(*operation, [&] { ++called; });
    }
    Deadline const deadline = Clock::now() + std::chrono::seconds(20);
    while (called < 3 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
    EXPECT_EQ(called, 3);
    finish(group, group.barrier());
  });
}

TEST_P(ObservationTest, ACallbackRunsWhenItsOperationFails) {
  std::barrier in_step(2);
  run_ranks(2, options(), [&](Group& group) {
    std::vector<std::byte> block(8);
    std::atomic<int> called{0};
    auto const operation = group.receive(block, 1 - group.rank(), 1, 1);
    group.on_done(*operation, [&] { ++called; });
    in_step.arrive_and_wait();
    if (group.rank() == 0) group.admin().abort("no more");
    Deadline const deadline = Clock::now() + std::chrono::seconds(20);
    while (called == 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
    EXPECT_EQ(called, 1) << "rank " << group.rank();
    EXPECT_EQ(operation->status().code(), StatusCode::kAborted);
    in_step.arrive_and_wait();
  });
}

HEADWAY_TEST_GROUPS(ObservationTest);

}  // namespace
}  // namespace headway::comm
