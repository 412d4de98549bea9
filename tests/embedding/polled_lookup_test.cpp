// SPDX-License-Identifier: Apache-2.0

// ShardedTable::poll(): lookups that never wait, several of them in flight, in any order.

#include "headway/base/status.hpp"
#include "sharded_table_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::size_t kBatches = 12;

/// Runs `body` on ranks that have two channels: of keys, and of rows.
void run_polling_ranks(int size, std::size_t key_room,
                       std::function<void(int rank, std::unique_ptr<Exchanger>, ShardedTableOptions)> const& body) {
  comm::GroupOptions options;
  options.num_channels = 2;
  options.max_lag = options.max_lag_limit = 3;
  run_groups(size, options, [&](comm::Group& group) {
    body(group.rank(), std::make_unique<GroupExchanger>(group, 0),
         {.row_exchanger = std::make_shared<GroupExchanger>(group, 1), .key_room = key_room});
  });
}

/// Batches of all ranks: (ranks)(batches).
std::vector<std::vector<RankBatch>> random_batches(int size) {
  std::mt19937 random(5);
  std::vector<std::vector<RankBatch>> batches(static_cast<std::size_t>(size));
  for (auto& of_rank : batches) {
    for (std::size_t i = 0; i < kBatches; ++i) of_rank.push_back(random_batch(random));
  }
  return batches;
}

/// Polls all batches, in an order of this rank's own, until they are finished.
void poll_all(ShardedTable& tables, std::span<std::unique_ptr<ShardedTable::Batch> const> batches, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::size_t> left(batches.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!left.empty()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << left.size() << " batches are not finished";
    std::ranges::shuffle(left, random);
    std::erase_if(left, [&](std::size_t index) { return tables.poll(*batches[index]); });
    std::this_thread::yield();
  }
}

class PolledLookupTest : public testing::TestWithParam<std::tuple<int, std::size_t, LookupMode>> {};

TEST_P(PolledLookupTest, EmbeddingsAreThoseOfLookupsThatWait) {
  auto const [size, key_room, mode] = GetParam();
  auto const batches = random_batches(size);
  std::vector<std::vector<Outputs>> waited(static_cast<std::size_t>(size)), polled(static_cast<std::size_t>(size));
  run_ranks(size, [&, mode = mode](int rank, std::unique_ptr<Exchanger> exchanger) {
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger));
    for (auto const& each : batches[static_cast<std::size_t>(rank)]) {
      auto const batch = tables.begin(each.features(), {.mode = mode});
      tables.finish(*batch);
      waited[static_cast<std::size_t>(rank)].push_back(expand_all(tables, *batch));
    }
  });
  run_polling_ranks(
      size, key_room, [&, mode = mode](int rank, std::unique_ptr<Exchanger> exchanger, ShardedTableOptions options) {
        ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger), std::move(options));
        std::vector<std::unique_ptr<ShardedTable::Batch>> in_flight;
        for (auto const& each : batches[static_cast<std::size_t>(rank)]) {
          in_flight.push_back(tables.begin(each.features(), {.mode = mode}));
          if (in_flight.size() % 3 == static_cast<std::size_t>(rank)) static_cast<void>(tables.poll(*in_flight.back()));
        }
        poll_all(tables, in_flight, static_cast<unsigned>(rank));
        for (auto const& each : in_flight) {
          EXPECT_TRUE(tables.is_finished(*each));
          polled[static_cast<std::size_t>(rank)].push_back(expand_all(tables, *each));
        }
      });
  EXPECT_EQ(waited, polled);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PolledLookupTest,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 4, 1024),
                                          testing::Values(LookupMode::kInsert, LookupMode::kRead)));

TEST(PolledLookup, ABatchAnswersAfterThoseBeforeIt) {
  auto const batches = random_batches(2);
  run_polling_ranks(2, 1024, [&](int rank, std::unique_ptr<Exchanger> exchanger, ShardedTableOptions options) {
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger), std::move(options));
    auto const& own = batches[static_cast<std::size_t>(rank)];
    auto first = tables.begin(own[0].features()), second = tables.begin(own[1].features());
    for (int i = 0; i < 50; ++i) EXPECT_FALSE(tables.poll(*second)) << "the first batch has not read its rows";
    while (!tables.poll(*first)) std::this_thread::yield();
    while (!tables.poll(*second)) std::this_thread::yield();
    // Batches may be taken to a stage by the calls that wait; they still answer in their order.
    auto one = tables.begin(own[4].features()), other = tables.begin(own[5].features());
    tables.look_up(*one);
    tables.look_up(*other);
    if (rank == 0) {
      for (int i = 0; i < 50; ++i) EXPECT_FALSE(tables.poll(*other));
    }
    while (!tables.poll(*one)) std::this_thread::yield();
    while (!tables.poll(*other)) std::this_thread::yield();
    // Without the first, which nobody finishes, the second goes on.
    auto dropped = tables.begin(own[2].features());
    auto last = tables.begin(own[3].features());
    EXPECT_FALSE(tables.poll(*last));
    dropped.reset();
    while (!tables.poll(*last)) std::this_thread::yield();
  });
}

TEST(PolledLookup, APeerThatIsLostEndsIt) {
  auto const batches = random_batches(2);
  run_polling_ranks(2, 1024, [&](int rank, std::unique_ptr<Exchanger> exchanger, ShardedTableOptions options) {
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger), std::move(options));
    if (rank == 1) return;  // Its group is destroyed.
    auto const batch = tables.begin(batches[0][0].features());
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    EXPECT_THROW(
        {
          while (!tables.poll(*batch) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        },
        base::OperationError);
    EXPECT_THROW(static_cast<void>(tables.poll(*batch)), base::UsageError) << "the lookup has failed";
  });
}

TEST(PolledLookup, SeveralRanksNeedAnExchangerOfRows) {
  auto const batches = random_batches(2);
  run_ranks(2, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger));
    auto const batch = tables.begin(batches[static_cast<std::size_t>(rank)][0].features());
    EXPECT_THROW(static_cast<void>(tables.poll(*batch)), base::UsageError);
    tables.finish(*batch);  // Nothing has changed.
    EXPECT_TRUE(tables.poll(*batch));
  });
}

TEST(PolledLookup, NothingIsReadAhead) {
  run_polling_ranks(2, 1024, [&](int /*rank*/, std::unique_ptr<Exchanger> exchanger, ShardedTableOptions options) {
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger), std::move(options));
    EXPECT_THROW(tables.read_ahead({}, {}), base::UsageError);
  });
}

TEST(PolledLookup, RanksAgreeOnTheRoomForKeys) {
  comm::GroupOptions options;
  options.num_channels = 2;
  run_groups(2, options, [](comm::Group& group) {
    ShardedTableOptions const tables{.row_exchanger = std::make_shared<GroupExchanger>(group, 1),
                                     .key_room = group.rank() == 0 ? std::size_t{64} : std::size_t{128}};
    EXPECT_THROW(
        ShardedTable(tables_with(kernels::OptimizerKind::kSgd), std::make_unique<GroupExchanger>(group), tables),
        base::UsageError);
  });
}

}  // namespace
}  // namespace headway::embedding
