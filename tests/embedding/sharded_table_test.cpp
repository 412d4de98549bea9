// SPDX-License-Identifier: Apache-2.0

// Lookups of a ShardedTable: any number of ranks gives what one rank gives that has all their batches, in all modes.
//
// A lookup sends keys to their owners and gets embeddings back: begin() starts it, finish() ends it, expand() writes
// the embeddings of all bags. A merged table stands for tables of equal options that share storage. Messages of keys
// have a capacity, or their sizes travel first: the mode `sizes`, which with() makes of an exchanger.

#include "headway/base/status.hpp"
#include "sharded_table_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

class ShardedTableTest : public testing::TestWithParam<Mode> {};

TEST_P(ShardedTableTest, RanksTrainAsOneThatHasAllTheirBatches) {
  auto const [size, dedup, optimizer, sizes] = GetParam();
  constexpr std::uint32_t kSteps = 4;
  std::mt19937 random(7);
  std::vector<std::vector<RankBatch>> batches(kSteps);
  for (auto& of_step : batches) {
    for (int rank = 0; rank < size; ++rank) of_step.push_back(random_batch(random));
  }

  ShardedTable alone(tables_with(optimizer), make_local_exchanger());
  std::vector<Outputs> expected;
  for (std::uint32_t step = 1; step <= kSteps; ++step) {
    RankBatch const all = join(batches[step - 1]);
    alone.begin_step(step);
    auto const batch = alone.begin(all.features());
    alone.finish(*batch);
    expected.push_back(expand_all(alone, *batch));
    train(alone, *batch, all.gradients, step);
  }
  Contents expected_contents;
  add_contents(expected_contents, alone);

  std::vector<std::vector<Outputs>> outputs(kSteps, std::vector<Outputs>(static_cast<std::size_t>(size)));
  std::vector<Contents> contents(static_cast<std::size_t>(size));
  run_ranks(size,
            [&, dedup = dedup, optimizer = optimizer, sizes = sizes](int rank, std::unique_ptr<Exchanger> exchanger) {
              auto const at = static_cast<std::size_t>(rank);
              ShardedTable tables(tables_with(optimizer), with(sizes, std::move(exchanger)), {.dedup = dedup});
              for (std::uint32_t step = 1; step <= kSteps; ++step) {
                RankBatch const& own = batches[step - 1][at];
                tables.begin_step(step);
                auto const batch = tables.begin(own.features());
                tables.finish(*batch);
                outputs[step - 1][at] = expand_all(tables, *batch);
                train(tables, *batch, own.gradients, step);
              }
              add_contents(contents[at], tables);
            });

  for (std::uint32_t step = 0; step < kSteps; ++step) {
    std::vector<RankBatch> as_batches = batches[step];
    for (std::size_t rank = 0; rank < as_batches.size(); ++rank) as_batches[rank].gradients = outputs[step][rank];
    EXPECT_EQ(join(as_batches).gradients, expected[step]) << "outputs of step " << step + 1;
  }
  Contents all_contents;
  for (auto& each : contents) {
    all_contents.merge(each);
    EXPECT_TRUE(each.empty()) << "a key is on two ranks";
  }
  EXPECT_EQ(all_contents, expected_contents);
}

INSTANTIATE_TEST_SUITE_P(Modes, ShardedTableTest, all_modes());

TEST(ShardedTable, SeveralBatchesMayBeBegunBeforeTheFirstIsFinished) {
  std::mt19937 random(3);
  std::vector<RankBatch> const first{random_batch(random), random_batch(random)};
  std::vector<RankBatch> const second{random_batch(random), random_batch(random)};
  std::vector<std::vector<Outputs>> outputs(2, std::vector<Outputs>(2));
  for (bool const at_once : {true, false}) {
    run_ranks(2, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
      auto const at = static_cast<std::size_t>(rank);
      ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger));
      auto const one = tables.begin(first[at].features());
      if (!at_once) tables.finish(*one);
      auto const two = tables.begin(second[at].features());
      if (at_once) tables.finish(*one);
      tables.finish(*two);
      auto joined = expand_all(tables, *one);
      for (auto& each : expand_all(tables, *two)) joined.push_back(std::move(each));
      outputs[at_once ? 0 : 1][at] = std::move(joined);
    });
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

/// Counts the all-to-alls and the messages of another exchanger.
class CountingExchanger final : public Exchanger {
 public:
  CountingExchanger(std::unique_ptr<Exchanger> below, int& num_exchanges, int& num_sends)
      : below_(std::move(below)), num_exchanges_(num_exchanges), num_sends_(num_sends) {}

  [[nodiscard]] int rank() const override { return below_->rank(); }
  [[nodiscard]] int size() const override { return below_->size(); }
  [[nodiscard]] bool takes_capacities() const override { return below_->takes_capacities(); }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> memory,
                                                std::span<std::size_t> received_bytes) override {
    ++num_exchanges_;
    return below_->start(sends, receives, std::move(memory), received_bytes);
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer, std::uint64_t number,
                                               std::shared_ptr<void const> memory) override {
    ++num_sends_;
    return below_->send(block, peer, number, std::move(memory));
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                  std::shared_ptr<void const> memory) override {
    return below_->receive(block, peer, number, std::move(memory));
  }

 private:
  std::unique_ptr<Exchanger> below_;
  int &num_exchanges_, &num_sends_;
};

// The exchanges send keys to their owners, embeddings back, and gradients to the owners.
TEST(ShardedTable, AStepTakesThreeExchangesAndMoreOnlyWhileBatchesGrow) {
  constexpr std::int64_t kMany = 6000;  // More keys for each rank than the first messages have room for.
  run_ranks(3, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
    int num_exchanges = 0, num_sends = 0;
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd),
                        std::make_unique<CountingExchanger>(std::move(exchanger), num_exchanges, num_sends));
    std::vector<std::int64_t> ids, lengths{kMany};
    for (std::int64_t i = 0; i < kMany; ++i) ids.push_back(i * 3 + rank);
    std::vector<Feature> const features{
        {.name = "user", .table = kUsers, .ids = {ids.data(), ids.size()}, .lengths = {lengths.data(), 1}}};
    {
      auto const dropped = tables.begin(features);  // All ranks drop it: nobody waits for the rest of its keys.
    }
    for (int const expected_sends : {2, 0, 0}) {
      num_exchanges = num_sends = 0;
      auto const batch = tables.begin(features);
      EXPECT_EQ(num_exchanges, 1) << "the keys are on their way";
      tables.finish(*batch);
      EXPECT_EQ(num_exchanges, 2);
      EXPECT_EQ(num_sends, expected_sends) << "one to each other rank, in the first batch alone";
      auto const outputs = expand_all(tables, *batch);
      auto const initial = Initializer::uniform(-1, 1, 5);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        std::vector<float> embedding(3);
        initial.fill({.id = static_cast<std::uint64_t>(ids[i]), .table = kUsers}, embedding);
        ASSERT_TRUE(std::ranges::equal(embedding, std::span(outputs[0]).subspan(i * 3, 3))) << "id " << ids[i];
      }
      tables.return_gradients(*batch, std::vector<std::span<float const>>(2));
      EXPECT_EQ(num_exchanges, 3);
    }
  });
}

TEST(ShardedTable, RanksThatDisagreeAreToldWhatBothHave) {
  run_ranks(2, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
    auto tables = tables_with(kernels::OptimizerKind::kSgd);
    if (rank == 1) tables[1].options.dim = 16;
    try {
      ShardedTable const unused(tables, std::move(exchanger));
      ADD_FAILURE() << "rank " << rank << " did not notice";
    } catch (base::UsageError const& error) {
      std::string const text = error.what();
      EXPECT_NE(text.find("dim 8"), std::string::npos) << text;
      EXPECT_NE(text.find("dim 16"), std::string::npos) << text;
    }
  });
}

TEST(ShardedTable, BadFeaturesAreNamedAndNothingIsSent) {
  std::mt19937 random(1);
  RankBatch const good = random_batch(random);
  RankBatch bad = good;
  bad.tag_lengths[0] += 1;
  run_ranks(2, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
    ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger));
    if (rank == 0) {
      auto features = good.features();
      features[2].table = 9;
      EXPECT_THROW(static_cast<void>(tables.begin(features)), base::UsageError);
      EXPECT_THROW(static_cast<void>(tables.begin(bad.features())), base::UsageError);
    }
    auto const batch = tables.begin(good.features());  // Rank 1 has not noticed.
    EXPECT_THROW(static_cast<void>(expand_all(tables, *batch)), base::UsageError) << "not finished";
    tables.finish(*batch);
    static_cast<void>(expand_all(tables, *batch));
  });
  auto twice = tables_with(kernels::OptimizerKind::kSgd);
  twice[1].tables.push_back(kTags);
  EXPECT_THROW(ShardedTable(twice, make_local_exchanger()), base::UsageError);
}

TEST(ShardedTable, ARankWithBadOptionsTellsTheOthers) {
  run_ranks(2, [](int rank, std::unique_ptr<Exchanger> exchanger) {
    auto tables = tables_with(kernels::OptimizerKind::kSgd);
    if (rank == 1) tables[1].tables.push_back(kTags);
    try {
      ShardedTable const unused(tables, std::move(exchanger));
      ADD_FAILURE() << "rank " << rank << " did not notice";
    } catch (base::UsageError const& error) {
      EXPECT_NE(std::string(error.what()).find("is merged into two tables"), std::string::npos) << error.what();
    }
  });
}

/// Exchanger of rank 0 of 2. Its peer would send exactly what it sends, so each block is copied back. The exchange
/// number `fails_at`, from 1, fails.
class FailingExchanger final : public Exchanger {
 public:
  explicit FailingExchanger(int fails_at) : fails_at_(fails_at) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 2; }
  [[nodiscard]] bool takes_capacities() const override { return true; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> /*memory*/,
                                                std::span<std::size_t> received_bytes) override {
    if (--fails_at_ == 0) throw base::OperationError({base::StatusCode::kPeerLost, "a rank was lost"});
    for (std::size_t i = 0; i < sends.size(); ++i) {
      std::ranges::copy(sends[i], receives[i].begin());
      if (!received_bytes.empty()) received_bytes[i] = sends[i].size();
    }
    return std::make_unique<Done>();
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> /*block*/, int /*peer*/,
                                               std::uint64_t /*number*/,
                                               std::shared_ptr<void const> /*memory*/) override {
    return std::make_unique<Done>();
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> /*block*/, int /*peer*/,
                                                  std::uint64_t /*number*/,
                                                  std::shared_ptr<void const> /*memory*/) override {
    return std::make_unique<Done>();
  }

 private:
  class Done final : public Exchange {
   public:
    void wait() override {}
    [[nodiscard]] bool is_done() override { return true; }
  };

  int fails_at_;
};

TEST(ShardedTable, AfterAFailedExchangeNoOtherBegins) {
  std::mt19937 random(1);
  RankBatch const batch = random_batch(random);
  // Two exchanges agree on the tables, and the third one is that of the norm.
  ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::make_unique<FailingExchanger>(3));
  EXPECT_THROW(static_cast<void>(tables.gradient_norm()), base::OperationError);
  EXPECT_THROW(static_cast<void>(tables.begin(batch.features())), base::UsageError);
  EXPECT_THROW(static_cast<void>(tables.gradient_norm()), base::UsageError);
}

TEST(ShardedTable, AllRanksKnowHowManyKeysGotNoRow) {
  auto options = tables_with(kernels::OptimizerKind::kSgd);
  options[1].options.max_rows = 2;  // On each rank.
  for (int const size : {1, 2}) {
    run_ranks(size, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
      ShardedTable tables(options, std::move(exchanger));
      std::vector<std::int64_t> ids, lengths{64};
      for (std::int64_t i = 0; i < 64; ++i) ids.push_back(64 * rank + i);
      std::vector<Feature> const features{
          {.name = "items", .table = kItems, .ids = {ids.data(), ids.size()}, .lengths = {lengths.data(), 1}}};
      auto const batch = tables.begin(features);
      EXPECT_THROW(static_cast<void>(tables.num_refused(*batch, 1)), base::UsageError) << "not finished";
      tables.finish(*batch);
      EXPECT_EQ(tables.num_refused(*batch, 0), 0U);
      EXPECT_EQ(tables.num_refused(*batch, 1), static_cast<std::uint64_t>(64 * size - 2 * size));
    });
  }
}

TEST(ShardedTable, UnknownIdsAreReadAsZerosIfWanted) {
  auto options = tables_with(kernels::OptimizerKind::kSgd);
  options[0].reads_unknown_as_zeros = true;
  for (int const size : {1, 2}) {
    run_ranks(size, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
      ShardedTable tables(options, std::move(exchanger));
      std::vector<std::int64_t> const known{1, 2, 3}, both{1, 77, 3, 78}, of_known{3}, of_both{2, 2};
      auto const lists = [&](std::vector<std::int64_t> const& ids, std::vector<std::int64_t> const& lengths) {
        return std::vector<Feature>{{.name = "tags",
                                     .table = kTags,
                                     .pooling = Pooling::kSum,
                                     .ids = {ids.data(), ids.size()},
                                     .lengths = {lengths.data(), lengths.size()}}};
      };
      tables.finish(*tables.begin(lists(known, of_known)));
      for (bool const keeps : {false, true}) {
        auto const batch = tables.begin(lists(both, of_both), {.mode = LookupMode::kRead, .keeps_embeddings = keeps});
        tables.finish(*batch);
        auto const initial = Initializer::uniform(-1, 1, 5);
        std::vector<float> expected(6);
        initial.fill({.id = 1, .table = kTags}, std::span(expected).first(3));
        initial.fill({.id = 3, .table = kTags}, std::span(expected).last(3));
        EXPECT_EQ(expand_all(tables, *batch)[0], expected) << "rank " << rank << " of " << size;
      }
    });
  }
}

TEST(ShardedTable, RowsOfABatchStayWhileItExists) {
  auto options = tables_with(kernels::OptimizerKind::kSgd);
  options.resize(1);
  options[0].options.max_rows = 8;
  options[0].options.eviction = EvictionPolicy::kLeastRecentlyUsed;
  options[0].options.high_water = 4;
  options[0].options.low_water = 2;
  ShardedTable tables(options, make_local_exchanger());
  std::vector<std::int64_t> const ids{1, 2, 3, 4, 5, 6}, lengths{6};
  std::vector<Feature> const features{
      {.name = "user", .table = kUsers, .ids = {ids.data(), ids.size()}, .lengths = {lengths.data(), 1}}};
  std::vector<std::int64_t> const old_ids{7, 8}, old_lengths{2};
  std::vector<Feature> const old_features{
      {.name = "user", .table = kUsers, .ids = {old_ids.data(), 2}, .lengths = {old_lengths.data(), 1}}};
  tables.finish(*tables.begin(old_features));
  tables.begin_step(1);
  auto batch = tables.begin(features);
  tables.finish(*batch);
  EXPECT_THROW(tables.finish(*batch), base::UsageError);
  EXPECT_EQ(tables.table(0).size().rows, 8);
  tables.begin_step(2);
  EXPECT_EQ(tables.table(0).size().rows, 6) << "those of the batch, which may still be trained";
  static_cast<void>(expand_all(tables, *batch));
  std::vector<float> const gradients(6 * 3, 1);
  std::vector<std::span<float const>> const of_tables{gradients};
  tables.return_gradients(*batch, of_tables);
  batch.reset();
  tables.begin_step(2);
  EXPECT_EQ(tables.table(0).size().rows, 6) << "their gradients wait to be applied";
  tables.apply_gradients(1, {.rate = 1});
  tables.begin_step(3);
  EXPECT_EQ(tables.table(0).size().rows, 2);
  batch = tables.begin(features, {.mode = LookupMode::kRead});
  tables.finish(*batch);
  EXPECT_EQ(tables.table(0).size().rows, 2) << "reading inserts nothing";
  tables.table(0).clear();
  EXPECT_THROW(static_cast<void>(expand_all(tables, *batch)), base::UsageError) << "its rows are gone";
}

}  // namespace
}  // namespace headway::embedding
