// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"
#include "failing_operation.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Ranks = std::vector<int>;

/// Records of a group's last operations. An exchange is queued from its start until the bound (max_lag) lets it be
/// posted, which means sent. The callback of on_failure() is told of the group's failure, with the records. The peer of
/// a collective is its root, or -1; its channel is -1. send() and receive() take a block, the peer, the match (tag) and
/// the data type.
class FlightRecorderTest : public GroupTest {
 protected:
  static void run_exchange(Group& group, std::uint64_t number, std::size_t bytes) {
    Exchange exchange(group.rank(), group.size(), number, even_sizes(bytes));
    exchange.start(group);
    exchange.finish(group);
  }

  static void expect_in_order(std::vector<FlightRecord> const& records) {
    for (std::size_t i = 1; i < records.size(); ++i) EXPECT_LE(records[i - 1].started, records[i].started);
  }

  static GroupOptions impatient_options() {
    auto impatient = options();
    impatient.timeout = milliseconds(300);
    return impatient;
  }

  static void expect_recent(FlightRecord::Time time) {
    auto const now = std::chrono::system_clock::now();
    EXPECT_LT(time, now + seconds(1));
    EXPECT_GT(time, now - seconds(60));
  }
};

TEST_P(FlightRecorderTest, ACompletedExchangeIsRecordedWithItsSizesAndTimes) {
  run_ranks(2, options(), [](Group& group) {
    run_exchange(group, 0, 100);
    run_exchange(group, 1, 50000);
    auto const records = group.monitor().flight_records();
    ASSERT_EQ(records.size(), 2u);
    for (std::uint64_t number = 0; number < 2; ++number) {
      auto const& record = records[number];
      EXPECT_EQ(record.seq, number);
      EXPECT_STREQ(record.verb, "all_to_all_v");
      EXPECT_EQ(record.channel, 0);
      EXPECT_EQ(record.peer, -1);
      EXPECT_EQ(record.data_type, 1);
      EXPECT_EQ(record.input_bytes, number == 0 ? 200u : 100000u);
      EXPECT_EQ(record.output_bytes, record.input_bytes);
      EXPECT_EQ(record.state, FlightState::kCompleted);
      EXPECT_TRUE(record.waiting_for.empty());
      expect_recent(record.started);
      EXPECT_GE(record.posted, record.started);
      EXPECT_GE(record.completed, record.posted);
    }
    EXPECT_GE(records[1].started, records[0].completed);
  });
}

TEST_P(FlightRecorderTest, CollectivesAndMessagesAreRecordedWithTheirPeerAndNumber) {
  run_ranks(3, options(), [](Group& group) {
    std::vector<std::byte> block(100), parts(300);
    std::vector<std::span<std::byte>> receives;
    for (std::size_t rank = 0; rank < 3; ++rank) receives.push_back(std::span(parts).subspan(rank * 100, 100));
    finish(group, group.broadcast(block, 2, 7));
    finish(group, group.all_gather(block, receives, 7));
    finish(group, group.barrier());
    for (int message = 0; message < 2; ++message) {
      if (group.rank() == 0) finish(group, group.send(block, 1, 1, 7));
      if (group.rank() == 1) finish(group, group.receive(block, 0, 1, 7));
    }
    auto const records = group.monitor().flight_records();
    ASSERT_EQ(records.size(), group.rank() == 2 ? 3u : 5u);
    expect_in_order(records);
    EXPECT_STREQ(records[0].verb, "broadcast");
    EXPECT_EQ(records[0].peer, 2);
    EXPECT_EQ(records[0].channel, -1);
    EXPECT_STREQ(records[1].verb, "all_gather");
    EXPECT_EQ(records[1].seq, 1u);
    EXPECT_EQ(records[1].peer, -1);
    EXPECT_EQ(records[1].input_bytes, 100u);
    EXPECT_EQ(records[1].output_bytes, 300u);
    EXPECT_EQ(records[1].data_type, 7);
    EXPECT_STREQ(records[2].verb, "barrier");
    for (std::size_t message = 0; group.rank() < 2 && message < 2; ++message) {
      auto const& record = records[3 + message];
      EXPECT_STREQ(record.verb, group.rank() == 0 ? "send" : "receive");
      EXPECT_EQ(record.seq, message);
      EXPECT_EQ(record.peer, 1 - group.rank());
    }
    for (auto const& record : records) EXPECT_EQ(record.state, FlightState::kCompleted);
  });
}

TEST_P(FlightRecorderTest, APendingOperationTellsWhomItWaitsFor) {
  std::barrier all_looked(3);
  run_ranks(3, options(), [&](Group& group) {
    Exchange exchange(group.rank(), 3, 0, even_sizes(100));
    std::vector<std::byte> block(8);
    if (group.rank() < 2) {
      exchange.start(group);
      auto const receive = group.receive(block, 2, 1, 1);
      EXPECT_EQ(group.wait(*exchange.operation(), milliseconds(500)).code(), StatusCode::kTimeout);
      auto const records = group.monitor().flight_records();
      ASSERT_EQ(records.size(), 2u);
      for (auto const& record : records) {
        EXPECT_EQ(record.state, FlightState::kPosted) << record.verb;
        EXPECT_EQ(record.waiting_for, Ranks{2}) << record.verb;
        EXPECT_EQ(record.completed, FlightRecord::Time());
      }
      all_looked.arrive_and_wait();
      finish(group, receive);
    } else {
      all_looked.arrive_and_wait();
      for (int peer = 0; peer < 2; ++peer) finish(group, group.send(block, peer, 1, 1));
      exchange.start(group);
    }
    exchange.finish(group);
  });
}

TEST_P(FlightRecorderTest, AnExchangeThatTheBoundHoldsBackIsQueued) {
  std::barrier all_looked(2);
  run_ranks(2, options(), [&](Group& group) {
    Exchange first(group.rank(), 2, 0, even_sizes(100)), second(group.rank(), 2, 1, even_sizes(100));
    if (group.rank() == 1) all_looked.arrive_and_wait();
    first.start(group);
    second.start(group);
    if (group.rank() == 0) {
      auto const records = group.monitor().flight_records();
      ASSERT_EQ(records.size(), 2u);
      EXPECT_EQ(records[0].state, FlightState::kPosted);
      EXPECT_EQ(records[1].state, FlightState::kQueued);
      expect_recent(records[1].started);
      EXPECT_EQ(records[1].posted, FlightRecord::Time());
      all_looked.arrive_and_wait();
    }
    first.finish(group);
    second.finish(group);
  });
}

TEST_P(FlightRecorderTest, ATimeoutLeavesRecordsThatNameTheMissingRank) {
  std::barrier all_failed(3);
  run_ranks(3, impatient_options(), [&](Group& group) {
    if (group.rank() != 1) {
      Exchange exchange(group.rank(), 3, 0, even_sizes(100));
      exchange.start(group);
      EXPECT_FALSE(group.wait(*exchange.operation()).ok());
      for (int look = 0; look < 2; ++look) {
        auto const records = group.monitor().flight_records();
        ASSERT_EQ(records.size(), 1u);
        EXPECT_EQ(records[0].state, FlightState::kFailed);
        EXPECT_EQ(records[0].waiting_for, Ranks{1});
        EXPECT_GE(records[0].completed, records[0].posted);
      }
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FlightRecorderTest, ALargeBlockThatIsNotTakenNamesItsReceiver) {
  std::barrier all_failed(2);
  run_ranks(2, impatient_options(), [&](Group& group) {
    auto const block = test_bytes(1 << 20, 1);
    if (group.rank() == 0) {
      EXPECT_FALSE(group.wait(*group.send(block, 1, 1, 1)).ok());
      auto const records = group.monitor().flight_records();
      ASSERT_EQ(records.size(), 1u);
      EXPECT_EQ(records[0].waiting_for, Ranks{1});
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FlightRecorderTest, FailureIsToldBeforeAnyWaiterSeesIt) {
  std::barrier all_failed(2);
  run_ranks(2, impatient_options(), [&](Group& group) {
    if (group.rank() == 0) {
      std::atomic<bool> is_told{false};
      group.admin().on_failure([&](Status const&, std::vector<FlightRecord> const&) {
        std::this_thread::sleep_for(milliseconds(50));  // About the time of writing a file.
        is_told = true;
      });
      std::vector<std::byte> output(200);
      auto const wait_for_message = [&](std::size_t which) {
        auto const operation = group.receive(std::span(output).subspan(100 * which, 100), 1, which, 1);
        EXPECT_FALSE(group.wait(*operation).ok());
        EXPECT_TRUE(is_told);
      };
      std::jthread const other(wait_for_message, 0);
      wait_for_message(1);
    }
    all_failed.arrive_and_wait();
  });
}

TEST_P(FlightRecorderTest, FailureIsToldOnceToARankThatWaitsForNothing) {
  std::barrier all_told(3);
  run_ranks(3, impatient_options(), [&](Group& group) {
    run_exchange(group, 0, 100);
    std::atomic<int> num_told{0};
    std::vector<FlightRecord> told;
    Status why;
    group.admin().on_failure([&](Status const& failure, std::vector<FlightRecord> const& records) {
      told = records;
      why = failure;
      ++num_told;
    });
    if (group.rank() == 0) {
      Exchange exchange(0, 3, 1, even_sizes(100));
      EXPECT_FALSE(exchange.run(group).ok());
      EXPECT_EQ(num_told, 1) << "before the caller sees the error";
    }
    Deadline const deadline = Clock::now() + seconds(20);
    while (num_told == 0 && Clock::now() < deadline) {
      // inproc shows a peer's failure only in a call. All other transports have a connection that shows it.
      if (group.options().transport == Transport::kInproc) static_cast<void>(group.monitor().health());
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(num_told, 1);
    EXPECT_TRUE(names(why.message(), "rank 0")) << why.message();
    EXPECT_EQ(told.size(), group.rank() == 0 ? 2u : 1u);
    EXPECT_EQ(told.at(0).state, FlightState::kCompleted);
    std::atomic<int> told_late{0};
    group.admin().on_failure([&](Status const&, std::vector<FlightRecord> const&) { ++told_late; });
    EXPECT_EQ(told_late, 1) << "the group has failed already";
    all_told.arrive_and_wait();
    EXPECT_EQ(num_told, 1);
  });
}

TEST_P(FlightRecorderTest, LeavingAGroupIsNoFailure) {
  std::atomic<int> num_told{0};
  std::barrier started(2);
  run_ranks(2, options(), [&](Group& group) {
    group.admin().on_failure([&](Status const&, std::vector<FlightRecord> const&) { ++num_told; });
    run_exchange(group, 0, 100);
    started.arrive_and_wait();
  });
  EXPECT_EQ(num_told, 0);
}

TEST_P(FlightRecorderTest, TheLastOnesAreKeptAndAPendingOneIsNeverPushedOut) {
  auto few = options();
  few.flight_records = 4;  // For each channel of exchanges, and again for all other operations together.
  std::barrier all_looked(2);
  run_ranks(2, few, [&](Group& group) {
    std::vector<std::byte> block(8);
    auto const pending = group.receive(block, 1 - group.rank(), 1, 1);
    for (std::uint64_t number = 0; number < 11; ++number) run_exchange(group, number, 100);
    auto const records = group.monitor().flight_records();
    all_looked.arrive_and_wait();
    ASSERT_EQ(records.size(), 5u);
    expect_in_order(records);
    EXPECT_STREQ(records[0].verb, "receive");
    EXPECT_EQ(records[0].waiting_for, Ranks{1 - group.rank()});
    for (std::uint64_t i = 1; i < 5; ++i) EXPECT_EQ(records[i].seq, 6 + i);
    finish(group, group.send(block, 1 - group.rank(), 1, 1));
    finish(group, pending);
    EXPECT_EQ(group.monitor().flight_records().size(), 4u + 2u) << "the messages are kept beside the exchanges";
    for (int collective = 0; collective < 9; ++collective) finish(group, group.barrier());
    EXPECT_EQ(group.monitor().flight_records().size(), 4u + 4u);
  });
}

TEST_P(FlightRecorderTest, AllThatIsPendingIsToldThoughItIsMoreThanIsKept) {
  auto few = options();
  few.flight_records = 3;  // Rounded up to 4.
  std::barrier all_looked(2);
  run_ranks(2, few, [&](Group& group) {
    if (group.rank() == 1) all_looked.arrive_and_wait();
    std::vector<Exchange> exchanges;
    for (std::uint64_t number = 0; number < 10; ++number) {
      exchanges.emplace_back(group.rank(), 2, number, even_sizes(100)).start(group);
    }
    if (group.rank() == 0) {
      auto const records = group.monitor().flight_records();
      all_looked.arrive_and_wait();
      ASSERT_EQ(records.size(), 10u);
      for (auto const& record : records) {
        EXPECT_EQ(record.input_bytes, 200u);
        EXPECT_EQ(record.waiting_for, Ranks{1});
        EXPECT_EQ(record.state, record.seq == 0 ? FlightState::kPosted : FlightState::kQueued);
      }
    }
    for (auto& exchange : exchanges) exchange.finish(group);
    EXPECT_EQ(group.monitor().flight_records().size(), 4u);
  });
}

TEST_P(FlightRecorderTest, WithoutRecordsNothingIsRecordedAndFailureIsStillTold) {
  auto none = options();
  none.flight_records = 0;
  std::barrier all_started(2), all_told(2);
  run_ranks(2, none, [&](Group& group) {
    run_exchange(group, 0, 100);
    std::vector<std::byte> block(8);
    auto const pending = group.receive(block, 1 - group.rank(), 1, 1);
    EXPECT_TRUE(group.monitor().flight_records().empty());
    std::atomic<bool> told{false};
    group.admin().on_failure([&](Status const&, std::vector<FlightRecord> const& records) {
      EXPECT_TRUE(records.empty());
      told = true;
    });
    all_started.arrive_and_wait();
    group.admin().abort("enough");
    EXPECT_FALSE(group.wait(*pending).ok());
    Deadline const deadline = Clock::now() + seconds(20);
    while (!told && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(told);
    EXPECT_TRUE(group.monitor().flight_records().empty());
    all_told.arrive_and_wait();
  });
}

TEST_P(FlightRecorderTest, ThreadsRecordAndReadAtOnce) {
  auto with_channels = options();
  with_channels.num_channels = 2;
  run_ranks(2, with_channels, [](Group& group) {
    constexpr std::uint64_t kExchanges = 100;
    std::atomic<int> num_running{2};
    {
      std::vector<std::jthread> threads;
      for (int channel = 0; channel < 2; ++channel) {
        threads.emplace_back([&group, &num_running, channel] {
          for (std::uint64_t number = 0; number < kExchanges; ++number) {
            Exchange exchange(group.rank(), 2, number, even_sizes(100));
            exchange.start(group, channel);
            exchange.finish(group);
          }
          --num_running;
        });
      }
      while (num_running > 0) {
        expect_in_order(group.monitor().flight_records());
        std::this_thread::yield();
      }
    }
    auto const records = group.monitor().flight_records();
    EXPECT_EQ(records.size(), 2 * kExchanges);
    for (int channel = 0; channel < 2; ++channel) {
      auto const is_of_channel = [&](auto const& record) { return record.channel == channel; };
      EXPECT_EQ(std::ranges::count_if(records, is_of_channel), static_cast<std::ptrdiff_t>(kExchanges));
    }
  });
}

HEADWAY_TEST_GROUPS(FlightRecorderTest);

}  // namespace
}  // namespace headway::comm
