// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"
#include "failing_operation.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

/// Ranks that disagree on an operation: each rank gets an error that names the difference, and nothing is overrun.
/// send() and receive() take a block, the peer, the match (tag) and the data type.
class MismatchTest : public GroupTest {
 protected:
  using Start = std::function<OperationPtr(Group&)>;

  /// Runs `start` on each of `size` ranks. Every rank must fail with a text that contains all `parts` as whole words.
  static void expect_failures(int size, std::vector<std::string> const& parts, Start const& start) {
    std::atomic<int> failed{0};
    run_ranks(size, options(), [&](Group& group) {
      Status const status = first_failure(group, start);
      EXPECT_EQ(status.code(), StatusCode::kAborted) << "rank " << group.rank();
      for (auto const& part : parts) {
        EXPECT_TRUE(names(status.message(), part))
            << "rank " << group.rank() << " lacks '" << part << "' in: " << status.message();
      }
      // No rank leaves before all have seen the error: its loss would be another error.
      for (++failed; failed < size;) std::this_thread::yield();
    });
    EXPECT_EQ(failed, size);
  }

  static void expect_guards(GuardedBytes const& block) { EXPECT_TRUE(block.is_guard_intact()); }
};

TEST_P(MismatchTest, AnExchangeWithMoreBytesThanExpectedFailsOnBothRanks) {
  for (auto const& [sent, expected] : {std::pair<std::size_t, std::size_t>{700, 50},
                                       {50, 700},
                                       {1, 0},
                                       {0, 1},
                                       {90000, 50},
                                       {50, 90000},
                                       {90001, 90000}}) {
    GuardedBytes output(expected);
    std::vector<std::byte> const source(sent), empty;
    expect_failures(2, {"rank 0", "rank 1", std::to_string(sent), std::to_string(expected)}, [&](Group& group) {
      std::vector<std::span<std::byte const>> const sends = group.rank() == 0
                                                                ? std::vector<std::span<std::byte const>>{empty, source}
                                                                : std::vector<std::span<std::byte const>>{empty, empty};
      std::vector<std::span<std::byte>> const receives = group.rank() == 1
                                                             ? std::vector<std::span<std::byte>>{output.span(), {}}
                                                             : std::vector<std::span<std::byte>>(2);
      return group.all_to_all_v({.sends = sends, .receives = receives});
    });
    expect_guards(output);
    EXPECT_TRUE(all_zero(output.span())) << "a mismatched block was written";
  }
}

TEST_P(MismatchTest, ABlockBeyondItsCapacityFailsOnBothRanks) {
  for (auto const& [sent, capacity] : {std::pair<std::size_t, std::size_t>{700, 50}, {1, 0}, {90001, 90000}}) {
    GuardedBytes output(capacity);
    std::vector<std::byte> const source(sent), empty;
    std::vector<std::vector<std::size_t>> received(2, std::vector<std::size_t>(2));
    expect_failures(2, {"rank 0", "rank 1", std::to_string(sent), std::to_string(capacity)}, [&](Group& group) {
      bool const sends_it = group.rank() == 0;
      std::vector<std::span<std::byte const>> sends(2, empty);
      std::vector<std::span<std::byte>> receives(2);
      (sends_it ? sends[1] : sends[0]) = sends_it ? std::span(source) : std::span(empty);
      if (!sends_it) receives[0] = output.span();
      return group.all_to_all_v(
          {.sends = sends, .receives = receives, .received_bytes = received[static_cast<std::size_t>(group.rank())]});
    });
    expect_guards(output);
    EXPECT_TRUE(all_zero(output.span())) << "a block that does not fit was written";
  }
}

TEST_P(MismatchTest, ABlockThatDoesNotFitIsNotTakenFromTheSlotEither) {
  auto lagging = options();
  lagging.max_lag = 1;
  // The block is announced (RTS) although max_lag is above 0, and the RTS is revoked at once.
  lagging.min_get_bytes = 1024;
  lagging.get_footprint = 0;
  lagging.rts_patience = {};
  GuardedBytes output(100);
  std::barrier in_step(2);
  run_ranks(2, lagging, [&](Group& group) {
    std::vector<std::byte> const source(4000, std::byte{7}), empty;
    std::vector<std::size_t> received(2);
    std::vector<std::span<std::byte const>> sends(2, empty);
    std::vector<std::span<std::byte>> receives(2);
    if (group.rank() == 0) sends[1] = source;
    if (group.rank() == 1) receives[0] = output.span();
    OperationPtr operation;
    auto const start = [&] {
      return group.all_to_all_v({.sends = sends, .receives = receives, .received_bytes = received});
    };
    if (group.rank() == 1) operation = start();
    in_step.arrive_and_wait();
    // Rank 1 makes no call meanwhile, so it may find the announcement and the revocation together.
    if (group.rank() == 0) {
      operation = start();
      static_cast<void>(group.wait(*operation));
    }
    in_step.arrive_and_wait();
    EXPECT_FALSE(first_failure(group, [&](Group&) { return operation; }).ok()) << "rank " << group.rank();
    in_step.arrive_and_wait();
  });
  expect_guards(output);
  EXPECT_TRUE(all_zero(output.span())) << "a block that does not fit was written";
}

TEST_P(MismatchTest, AnExchangeOfTwoDataTypesFailsOnBothRanks) {
  std::vector<Exchange> exchanges;
  for (int rank = 0; rank < 2; ++rank) exchanges.emplace_back(rank, 2, 1, even_sizes(100));
  expect_failures(2, {"rank 0", "rank 1", "77", "78"}, [&](Group& group) {
    return exchanges[static_cast<std::size_t>(group.rank())].start(group, 0, static_cast<DataType>(77 + group.rank()));
  });
}

TEST_P(MismatchTest, AMessageOfAnotherSizeFailsOnBothRanks) {
  for (auto const& [sent, expected] :
       {std::pair<std::size_t, std::size_t>{700, 50}, {50, 700}, {200000, 50}, {50, 200000}}) {
    GuardedBytes output(expected);
    std::vector<std::byte> const source(sent, std::byte{1});
    expect_failures(2, {"rank 0", "rank 1", std::to_string(sent), std::to_string(expected)}, [&](Group& group) {
      return group.rank() == 0 ? group.send(source, 1, 4, 1) : group.receive(output.span(), 0, 4, 1);
    });
    expect_guards(output);
    EXPECT_TRUE(all_zero(output.span())) << "a mismatched block was written";
  }
}

TEST_P(MismatchTest, AMessageOfAnotherDataTypeFailsOnBothRanks) {
  std::vector<std::byte> source(100), output(100);
  expect_failures(2, {"rank 0", "rank 1", "31", "32"}, [&](Group& group) {
    return group.rank() == 0 ? group.send(source, 1, 4, 31) : group.receive(output, 0, 4, 32);
  });
}

TEST_P(MismatchTest, AReceiveFromAnyRankComparesSizesToo) {
  GuardedBytes output(50);
  std::vector<std::byte> const source(700, std::byte{1});
  expect_failures(2, {"rank 0", "rank 1", "700", "50"}, [&](Group& group) {
    return group.rank() == 0 ? group.send(source, 1, 4, 1) : group.receive_any(output.span(), 4, 1);
  });
  expect_guards(output);
}

TEST_P(MismatchTest, ABroadcastOfDifferentSizesFailsOnEveryRank) {
  std::vector<GuardedBytes> blocks;
  for (int rank = 0; rank < 3; ++rank) blocks.emplace_back(rank == 2 ? 60 : 6000);
  expect_failures(3, {"rank 0", "rank 2", "6000", "60"}, [&](Group& group) {
    return group.broadcast(blocks[static_cast<std::size_t>(group.rank())].span(), 0, 1);
  });
  for (auto const& block : blocks) expect_guards(block);
}

TEST_P(MismatchTest, AnAllGatherOfDifferentSizesFailsOnEveryRank) {
  std::vector<GuardedBytes> outputs;
  for (int rank = 0; rank < 2; ++rank) outputs.emplace_back(200);
  std::vector<std::byte> const source(200);
  expect_failures(2, {"rank 0", "rank 1"}, [&](Group& group) {
    std::size_t const own = group.rank() == 0 ? 150 : 50;
    auto const output = outputs[static_cast<std::size_t>(group.rank())].span();
    std::vector<std::span<std::byte>> const receives = {output.first(own), output.subspan(own).first(own)};
    return group.all_gather(std::span(source).first(own), receives, 1);
  });
  for (auto const& output : outputs) expect_guards(output);
}

TEST_P(MismatchTest, DifferentCollectivesFailOnBothRanks) {
  std::vector<std::vector<std::byte>> blocks(2, std::vector<std::byte>(8));
  expect_failures(2, {"rank 0", "rank 1", "broadcast", "barrier"},
                  [&](Group& group) { return group.rank() == 0 ? group.broadcast(blocks[0], 0, 1) : group.barrier(); });
}

TEST_P(MismatchTest, DifferentRootsFailOnBothRanks) {
  std::vector<std::vector<std::byte>> blocks(2, std::vector<std::byte>(8));
  expect_failures(2, {"rank 0", "rank 1", "broadcast"}, [&](Group& group) {
    return group.broadcast(blocks[static_cast<std::size_t>(group.rank())], group.rank(), 1);
  });
}

TEST_P(MismatchTest, WhatIsStartedAfterAFailureFailsWithItsText) {
  std::atomic<int> failed{0};
  run_ranks(2, options(), [&](Group& group) {
    std::vector<std::byte> block(group.rank() == 0 ? 10 : 20);
    std::string const text(first_failure(group, [&](Group& mine) {
                             return group.rank() == 0 ? mine.send(block, 1, 4, 1) : mine.receive(block, 0, 4, 1);
                           }).message());
    try {
      Status const status = group.wait(*group.barrier());
      EXPECT_EQ(status.message(), text);
    } catch (OperationError const& error) {
      EXPECT_EQ(error.what(), text);
    }
    EXPECT_EQ(group.monitor().health().message(), text);
    for (++failed; failed < 2;) std::this_thread::yield();
  });
}

HEADWAY_TEST_GROUPS(MismatchTest);

}  // namespace
}  // namespace headway::comm
