// SPDX-License-Identifier: Apache-2.0

// All-to-all exchanges on every transport.
//
// The bound (max_lag) says how many exchanges a rank may post beyond the first that is not complete. Small blocks go
// through a slot of the receiver. Large ones are announced (RTS) and read by the receiver (get), or they go in
// fragments. Exchanges are numbered within their channel.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

/// Blocks of all sizes, under several bounds.
class AllToAllTest : public GroupTest {
 protected:
  /// Runs `count` exchanges. Finishes the oldest one whenever more than `in_flight` are pending.
  static void stream(Group& group, std::uint64_t count, int in_flight, std::size_t max_bytes) {
    std::deque<Exchange> pending;
    for (std::uint64_t number = 0; number < count; ++number) {
      pending.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, max_bytes)).start(group);
      if (static_cast<int>(pending.size()) > in_flight) {
        pending.front().finish(group);
        pending.front().scribble();
        pending.pop_front();
      }
    }
    for (auto& exchange : pending) exchange.finish(group);
  }
};

TEST_P(AllToAllTest, UnevenBlocksArriveInGroupsOfAnySize) {
  for (int size = 1; size <= 8; ++size) {
    run_ranks(size, options(), [](Group& group) { stream(group, 8, 0, 10000); });
  }
}

TEST_P(AllToAllTest, EmptyBlocksAreLegal) {
  run_ranks(3, options(), [](Group& group) {
    for (std::uint64_t number = 0; number < 10; ++number) {
      Exchange exchange(group.rank(), group.size(), number, even_sizes(0));
      exchange.start(group);
      exchange.finish(group);
    }
  });
}

TEST_P(AllToAllTest, BlocksNearTheSizeOfASlotArrive) {
  run_ranks(2, options(), [](Group& group) {
    std::size_t const slot = group.options().slot_bytes;  // Payload; the header of 64 bytes lies before it.
    std::uint64_t number = 0;
    for (std::size_t const bytes : {slot - 65, slot - 64, slot - 1, slot, slot + 1, slot + 63, slot + 64, 2 * slot}) {
      Exchange exchange(group.rank(), group.size(), number++, even_sizes(bytes));
      exchange.start(group);
      exchange.finish(group);
    }
  });
}

TEST_P(AllToAllTest, BlocksFarAboveASlotArrive) {
  for (int const max_lag : {0, 2}) {
    auto with_lag = options();
    with_lag.max_lag = max_lag;
    run_ranks(3, with_lag, [&](Group& group) { stream(group, 8, max_lag, 1500000); });
  }
}

TEST_P(AllToAllTest, BlocksMayBeSmallerThanTheirCapacity) {
  for (int const max_lag : {0, 2}) {
    auto lagging = options();
    lagging.max_lag = max_lag;
    run_ranks(3, lagging, [&](Group& group) {
      std::deque<Exchange> started;
      for (std::uint64_t number = 0; number < 40; ++number) {
        // Capacities and exact sizes take turns. Blocks go through slots, by get and in fragments.
        auto const sizes = uneven_sizes(number, number % 5 == 0 ? 700'000 : 3000);
        started.emplace_back(group.rank(), 3, number, sizes, number % 3 == 0 ? 0 : 100'000);
        if (number % 4 == 3) {
          for (auto& each : started) {
            if (&each != &started.back()) each.finish(group);
          }
          ASSERT_TRUE(started.back().run(group).ok());
          started.back().check();
          started.clear();
        } else {
          started.back().start(group);
        }
      }
    });
  }
}

TEST_P(AllToAllTest, OneRankMayGetEverything) {
  run_ranks(4, options(), [](Group& group) {
    for (std::uint64_t number = 0; number < 8; ++number) {
      int const target = static_cast<int>(number % 4);
      Exchange exchange(group.rank(), group.size(), number,
                        [=](int, int destination) { return destination == target ? std::size_t{50000} : 0; });
      exchange.start(group);
      exchange.finish(group);
    }
  });
}

TEST_P(AllToAllTest, ResultsAreTheSameForEveryBoundAndNumberInFlight) {
  for (int max_lag = 0; max_lag <= 4; ++max_lag) {
    for (int const extra : {0, 3}) {
      auto with_lag = options();
      with_lag.max_lag = max_lag;
      run_ranks(3, with_lag, [&](Group& group) { stream(group, 60, max_lag + extra, 6000); });
    }
  }
}

TEST_P(AllToAllTest, ResultsAreTheSameThoughRanksAreDelayedAtRandom) {
  auto with_lag = options();
  with_lag.max_lag = 2;
  run_ranks(4, with_lag, [](Group& group) {
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    std::deque<Exchange> pending;
    for (std::uint64_t number = 0; number < 100; ++number) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
      pending.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 4096)).start(group);
      if (pending.size() > 2) {
        pending.front().finish(group);
        pending.pop_front();
      }
    }
    for (auto& exchange : pending) exchange.finish(group);
  });
}

TEST_P(AllToAllTest, RanksMayHaveDifferentBounds) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    auto own = options();
    own.max_lag = rank;
    own.max_lag_limit = 2;
    auto const group = Group::connect(rank, 3, store, own);
    stream(*group, 60, rank, 5000);
  });
}

TEST_P(AllToAllTest, TheBoundMayChangeWhileExchangesRun) {
  auto with_limit = options();
  with_limit.max_lag = 1;
  with_limit.max_lag_limit = 4;
  run_ranks(3, with_limit, [](Group& group) {
    std::deque<Exchange> pending;
    for (std::uint64_t number = 0; number < 120; ++number) {
      if (number % 7 == 0)
        group.admin().set_max_lag(static_cast<int>((number / 7 + static_cast<std::uint64_t>(group.rank())) % 5));
      pending.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 5000)).start(group);
      if (pending.size() > 5) {
        pending.front().finish(group);
        pending.pop_front();
      }
    }
    for (auto& exchange : pending) exchange.finish(group);
    EXPECT_THROW(group.admin().set_max_lag(5), UsageError);
    EXPECT_THROW(group.admin().set_max_lag(-1), UsageError);
  });
}

TEST_P(AllToAllTest, WaitingForAnExchangeCompletesAllOlderOnes) {
  auto with_lag = options();
  with_lag.max_lag = 1;
  run_ranks(3, with_lag, [](Group& group) {
    std::deque<Exchange> exchanges;
    for (std::uint64_t number = 0; number < 10; ++number) {
      exchanges.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 9000)).start(group);
    }
    exchanges[6].finish(group);
    for (std::size_t older = 0; older < 6; ++older) {
      EXPECT_TRUE(exchanges[older].operation()->done()) << older;
      exchanges[older].check();
    }
    exchanges[9].finish(group);
    for (auto& exchange : exchanges) exchange.check();
  });
}

TEST_P(AllToAllTest, ABlockingExchangeBringsItsBytesAndCompletesAllOlderOnes) {
  auto with_lag = options();
  with_lag.max_lag = 2;
  run_ranks(3, with_lag, [](Group& group) {
    std::deque<Exchange> exchanges;
    for (std::uint64_t number = 0; number < 20; ++number) {
      exchanges.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 9000));
      if (number % 4 != 3) {
        exchanges.back().start(group);
        continue;
      }
      Status const status = exchanges.back().run(group);
      EXPECT_TRUE(status.ok()) << status.message();
      for (auto const& exchange : exchanges) exchange.check();
    }
  });
}

TEST_P(AllToAllTest, TheLargestBlocksAreRightWhoeverWaitsInTheCall) {
  auto streaming = options();
  streaming.min_get_bytes = 1024;
  streaming.stream_bytes = 150'000;  // Larger blocks go in fragments if both ranks wait in the call.
  run_ranks(3, streaming, [](Group& group) {
    for (std::uint64_t number = 0; number < 12; ++number) {
      Exchange exchange(group.rank(), group.size(), number, uneven_sizes(number, 400'000));
      if (number % 3 == static_cast<std::uint64_t>(group.rank())) {
        exchange.start(group);
        exchange.finish(group);
      } else {
        Status const status = exchange.run(group);
        EXPECT_TRUE(status.ok()) << status.message();
        exchange.check();
      }
    }
  });
}

TEST_P(AllToAllTest, AllRanksLearnWhichBoundIsWorthHaving) {
  auto adapting = options();
  adapting.max_lag = adapting.max_lag_limit = 4;
  adapting.adapt_lag = true;
  std::vector<int> advised(3);
  run_ranks(3, adapting, [&](Group& group) {
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    std::uniform_int_distribution<int> delay_us(0, 3000);
    std::deque<Exchange> exchanges;
    for (std::uint64_t number = 0; number < 160; ++number) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random)));
      exchanges.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 9000)).start(group);
      if (exchanges.size() <= 4) continue;
      exchanges.front().finish(group);
      exchanges.pop_front();
    }
    for (auto& exchange : exchanges) exchange.finish(group);
    advised[static_cast<std::size_t>(group.rank())] = group.monitor().recommended_max_lag(0);
  });
  EXPECT_GT(advised[0], 0);
  EXPECT_EQ(advised[1], advised[0]);
  EXPECT_EQ(advised[2], advised[0]);
}

TEST_P(AllToAllTest, NoBoundIsRecommendedWhereNobodyMeasures) {
  run_ranks(2, options(), [](Group& group) { EXPECT_THROW(group.monitor().recommended_max_lag(0), UsageError); });
}

TEST_P(AllToAllTest, LargeBlocksNeedNoReceiverWhoHasPosted) {
  auto with_lag = options();
  with_lag.max_lag = 1;
  with_lag.min_get_bytes = 1024;
  with_lag.get_footprint = 0;  // An RTS for every block from min_get_bytes on, also under a bound above 0.
  with_lag.rts_patience = {};  // The sender revokes an RTS at once and sends the block itself.
  std::barrier in_step(2);
  std::atomic<std::uint64_t> num_revoked{0};
  run_ranks(2, with_lag, [&](Group& group) {
    bool const uses_rendezvous = group.monitor().traits(1 - group.rank()).can_get && GetParam().allow_get;
    // On a loaded host the progress thread of rank 1 may take each RTS before it is revoked.
    auto const goes_on = [&](std::uint64_t number) { return uses_rendezvous && num_revoked == 0 && number < 1000; };
    for (std::uint64_t number = 0; number < 20 || goes_on(number); ++number) {
      Exchange exchange(group.rank(), 2, number, even_sizes(4000));
      if (group.rank() == 1) exchange.start(group);
      in_step.arrive_and_wait();
      if (group.rank() == 0) {
        exchange.start(group);
        exchange.finish(group);  // Rank 1 makes no call meanwhile.
        num_revoked = group.monitor().stats().rts_revoked;
      }
      in_step.arrive_and_wait();
      exchange.finish(group);
    }
    EXPECT_EQ(num_revoked > 0, uses_rendezvous) << num_revoked;
  });
}

TEST_P(AllToAllTest, LargeBlocksAreRightWhoeverMovesThem) {
  auto with_lag = options();
  with_lag.max_lag = 2;
  with_lag.min_get_bytes = 1024;
  with_lag.get_footprint = 0;
  run_ranks(4, with_lag, [&](Group& group) {
    std::deque<Exchange> exchanges;
    for (std::uint64_t number = 0; number < 60; ++number) {
      if (number % 4 == static_cast<std::uint64_t>(group.rank()))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      exchanges.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 6000)).start(group);
      if (exchanges.size() < 3) continue;
      exchanges.front().finish(group);
      exchanges.pop_front();
    }
    for (auto& exchange : exchanges) exchange.finish(group);
  });
}

TEST_P(AllToAllTest, TestMovesAnExchangeOnWithoutWait) {
  run_ranks(2, options(), [](Group& group) {
    Exchange exchange(group.rank(), group.size(), 1, even_sizes(20000));
    exchange.start(group);
    Deadline const deadline = Clock::now() + std::chrono::seconds(20);
    while (!group.test(*exchange.operation()) && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(exchange.operation()->done());
    EXPECT_TRUE(exchange.operation()->status().ok());
    exchange.check();
    // Other ranks may still need this rank.
    exchange.finish(group);
  });
}

TEST_P(AllToAllTest, OperationsAreNumberedWithinTheirChannel) {
  auto with_channels = options();
  with_channels.num_channels = 2;
  run_ranks(2, with_channels, [](Group& group) {
    for (std::uint64_t number = 0; number < 3; ++number) {
      for (int channel = 0; channel < 2; ++channel) {
        Exchange exchange(group.rank(), group.size(), number, even_sizes(10));
        EXPECT_EQ(exchange.start(group, channel)->seq(), number);
        exchange.finish(group);
      }
    }
  });
}

TEST_P(AllToAllTest, ChannelsMayBeUsedInDifferentOrderByDifferentRanks) {
  auto with_channels = options();
  with_channels.num_channels = 3;
  run_ranks(3, with_channels, [](Group& group) {
    for (std::uint64_t round = 0; round < 20; ++round) {
      std::deque<Exchange> exchanges;
      for (int i = 0; i < 3; ++i) {
        int const channel = (i + group.rank()) % 3;
        std::uint64_t const number = round * 3 + static_cast<std::uint64_t>(channel);
        exchanges.emplace_back(group.rank(), group.size(), number, uneven_sizes(number, 9000)).start(group, channel);
      }
      for (auto& exchange : exchanges) exchange.finish(group);
    }
  });
}

TEST_P(AllToAllTest, GroupsMayBeUsedInDifferentOrderByDifferentRanks) {
  constexpr int kGroups = 3;
  MemoryStore store;
  run_threads(3, [&](int rank) {
    std::vector<std::unique_ptr<Group>> groups;
    for (int i = 0; i < kGroups; ++i) {
      auto own = options();
      own.name = "group" + std::to_string(i);
      own.max_lag = i;
      groups.push_back(Group::connect(rank, 3, store, own));
    }
    for (std::uint64_t round = 0; round < 30; ++round) {
      std::deque<Exchange> exchanges;
      for (int i = 0; i < kGroups; ++i) {
        auto const which = static_cast<std::size_t>(i + rank) % kGroups;
        exchanges.emplace_back(rank, 3, round * kGroups + which, uneven_sizes(round * kGroups + which, 20000));
        exchanges.back().start(*groups[which]);
      }
      for (int i = 0; i < kGroups; ++i) {
        exchanges[static_cast<std::size_t>(i)].finish(*groups[static_cast<std::size_t>(i + rank) % kGroups]);
      }
    }
  });
}

TEST_P(AllToAllTest, ABlockMayBeWrittenAgainOnceItsExchangeIsDone) {
  auto with_lag = options();
  with_lag.max_lag = 1;
  run_ranks(2, with_lag, [](Group& group) {
    for (std::uint64_t number = 0; number < 20; ++number) {
      Exchange exchange(group.rank(), group.size(), number, even_sizes(300000));
      exchange.start(group);
      exchange.finish(group);
      exchange.scribble();
    }
  });
}

TEST_P(AllToAllTest, AMisusedExchangeIsAUsageErrorAndTheGroupGoesOn) {
  run_ranks(2, options(), [](Group& group) {
    std::vector<std::byte> memory(8);
    std::vector<std::span<std::byte const>> const sends(2, memory);
    std::vector<std::span<std::byte>> const receives(2, memory);
    std::vector<std::span<std::byte const>> const one_send(1, memory);
    EXPECT_THROW(group.all_to_all_v({.sends = one_send, .receives = receives}), UsageError);
    EXPECT_THROW(group.all_to_all_v({.sends = sends, .receives = {}}), UsageError);
    EXPECT_THROW(group.all_to_all_v({.sends = sends, .receives = receives, .channel = 1}), UsageError);
    EXPECT_THROW(group.all_to_all_v({.sends = sends, .receives = receives, .channel = -1}), UsageError);
    std::vector<std::size_t> one_number(1), numbers(2);
    EXPECT_THROW(group.all_to_all_v({.sends = sends, .receives = receives, .received_bytes = one_number}), UsageError);
    std::vector<std::span<std::byte>> const too_small(2, std::span(memory).first(7));
    EXPECT_THROW(group.all_to_all_v({.sends = sends, .receives = too_small, .received_bytes = numbers}), UsageError);
    stream(group, 5, 0, 1000);
  });
}

TEST_P(AllToAllTest, AnEightRankGroupStreamsWithLag) {
  auto with_lag = options();
  with_lag.max_lag = 3;
  run_ranks(8, with_lag, [](Group& group) { stream(group, 60, 4, 3000); });
}

HEADWAY_TEST_GROUPS(AllToAllTest);

}  // namespace
}  // namespace headway::comm
