// SPDX-License-Identifier: Apache-2.0

// Prioritized updates: read_ahead() reads the batches of the next step before the present one is applied, and losses
// and tables have the bits of lookups after the update.
//
// The variable `merged` is the index of a merged table: tables of equal options that share storage.

#include "headway/base/status.hpp"
#include "sharded_table_fixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::uint32_t kNumSteps = 40;

/// How a test trains.
struct Training {
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kAdam;
  Dedup dedup = Dedup::kBoth;
  bool sizes_first = false;  ///< The exchanger takes exact sizes only.
  std::size_t micro_batches = 1;
  std::uint32_t min_count = 1, hot_count = 0;
  std::size_t high_water = TableOptions::kUnlimited;
  std::uint32_t time_to_live = 0;
  std::size_t max_rows = TableOptions::kUnlimited;
  bool scales = false;  ///< Halves all gradients before they are applied, which needs them at their owners.
};

/// A rank's outputs, and what it has stored.
struct Trained {
  std::vector<Outputs> outputs;
  std::vector<double> norms;
  Contents contents;
  Traffic traffic;
};

std::vector<MergedTable> tables_of(Training const& training) {
  auto tables = tables_with(training.optimizer);
  for (auto& each : tables) {
    each.options.min_count = training.min_count;
    each.options.hot_count = training.hot_count;
    each.options.time_to_live = training.time_to_live;
    each.options.max_rows = training.max_rows;
    if (training.high_water == TableOptions::kUnlimited) continue;
    each.options.eviction =
        each.options.dim == 3 ? EvictionPolicy::kLeastRecentlyUsed : EvictionPolicy::kLeastFrequentlyUsed;
    each.options.high_water = training.high_water;
    each.options.low_water = training.high_water * 3 / 4;
  }
  return tables;
}

/// The batch of a rank in a step. Every step has ids of the step before; gradients are any numbers.
RankBatch batch_of(int rank, std::uint32_t step, std::size_t part) {
  std::mt19937 random(static_cast<unsigned>(rank) * 10'007 + step * 101 + static_cast<unsigned>(part));
  auto batch = random_batch(random);
  for (auto* const ids : {&batch.users, &batch.tags, &batch.items}) {
    for (auto& id : *ids) id = id < 4 ? id : static_cast<std::int64_t>(random() % 400) + step;
  }
  std::uniform_real_distribution<float> any(-1, 1);
  for (auto& of_table : batch.gradients) {
    for (float& value : of_table) value = any(random);
  }
  return batch;
}

void return_all(ShardedTable& tables, ShardedTable::Batch& batch, RankBatch const& own) {
  std::vector<std::span<float const>> const views(own.gradients.begin(), own.gradients.end());
  tables.return_gradients(batch, views);
}

Trained train(Training const& training, int rank, std::unique_ptr<Exchanger> exchanger, bool reads_ahead) {
  using Batches = std::vector<std::unique_ptr<ShardedTable::Batch>>;
  if (training.sizes_first) exchanger = std::make_unique<SizedExchanger>(std::move(exchanger));
  ShardedTable tables(tables_of(training), std::move(exchanger), {.dedup = training.dedup});
  Trained trained;
  auto const begin = [&](std::uint32_t step) {
    Batches batches;
    for (std::size_t part = 0; part < training.micro_batches; ++part) {
      batches.push_back(tables.begin(batch_of(rank, step, part).features()));
    }
    return batches;
  };
  auto const pointers = [](Batches const& batches) {
    std::vector<ShardedTable::Batch*> all;
    for (auto const& each : batches) all.push_back(each.get());
    return all;
  };
  tables.begin_step(1);
  auto present = begin(0);
  for (std::uint32_t step = 0; step < kNumSteps; ++step) {
    Batches next;
    for (std::size_t part = 0; part < present.size(); ++part) {
      tables.finish(*present[part]);
      trained.outputs.push_back(expand_all(tables, *present[part]));
      if (part + 1 == present.size() && reads_ahead && step + 1 < kNumSteps) {
        next = begin(step + 1);
        tables.begin_step(step + 2);
        tables.read_ahead(pointers(next), pointers(present));
      }
      return_all(tables, *present[part], batch_of(rank, step, part));
    }
    if (training.scales) {
      trained.norms.push_back(tables.gradient_norm());
      tables.scale_gradients(0.5);
    }
    tables.apply_gradients(step + 1, {.rate = 0.1, .of_tables = {{kTags, step % 2 == 0 ? 0.1 : 0.05}}}, 3);
    if (!reads_ahead && step + 1 < kNumSteps) {
      tables.begin_step(step + 2);  // The batches of this step are still there, so their rows stay.
      next = begin(step + 1);
    }
    present = std::move(next);
  }
  tables.drain();
  add_contents(trained.contents, tables);
  trained.traffic = tables.traffic();
  return trained;
}

/// Trains with and without read_ahead(), and compares all ranks.
void expect_same_bits(Training const& training, int size,
                      std::source_location caller = std::source_location::current()) {
  testing::ScopedTrace const trace(caller.file_name(), static_cast<int>(caller.line()), "training");
  std::vector<Trained> plain(static_cast<std::size_t>(size)), prioritized = plain;
  for (bool const reads_ahead : {false, true}) {
    auto& all = reads_ahead ? prioritized : plain;
    run_ranks(size, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
      all[static_cast<std::size_t>(rank)] = train(training, rank, std::move(exchanger), reads_ahead);
    });
  }
  std::uint64_t num_ahead = 0, num_collisions = 0;
  for (std::size_t rank = 0; rank < plain.size(); ++rank) {
    EXPECT_EQ(plain[rank].outputs, prioritized[rank].outputs) << "rank " << rank;
    EXPECT_EQ(plain[rank].contents, prioritized[rank].contents) << "rank " << rank;
    EXPECT_EQ(plain[rank].traffic.collisions, 0);
    ASSERT_EQ(plain[rank].norms.size(), prioritized[rank].norms.size());
    for (std::size_t i = 0; i < plain[rank].norms.size(); ++i) {  // Squares are added in another order.
      EXPECT_NEAR(plain[rank].norms[i], prioritized[rank].norms[i], 1e-12 * plain[rank].norms[i]);
    }
    num_ahead += prioritized[rank].traffic.keys_ahead;
    num_collisions += prioritized[rank].traffic.collisions;
  }
  EXPECT_GT(num_collisions, 0);
  if (training.max_rows == TableOptions::kUnlimited) {  // Else keys without a row are read late, too.
    EXPECT_GT(num_ahead, 2 * num_collisions);
  }
}

class PrioritizedUpdatesTest : public testing::TestWithParam<kernels::OptimizerKind> {};

TEST_P(PrioritizedUpdatesTest, HaveTheBitsOfThePlainScheduleForEveryOptimizer) {
  for (int const size : {2, 3, 4}) expect_same_bits({.optimizer = GetParam()}, size);
  expect_same_bits({.optimizer = GetParam(), .micro_batches = 3}, 2);
  expect_same_bits({.optimizer = GetParam(), .min_count = 2, .hot_count = 5, .high_water = 60, .time_to_live = 7}, 3);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, PrioritizedUpdatesTest,
                         testing::Values(kernels::OptimizerKind::kSgd, kernels::OptimizerKind::kAdagrad,
                                         kernels::OptimizerKind::kRowWiseAdagrad, kernels::OptimizerKind::kAdam,
                                         kernels::OptimizerKind::kRowWiseAdam));

TEST(PrioritizedUpdates, WorkWithEveryDeduplicationAndExchanger) {
  for (auto const dedup : {Dedup::kNone, Dedup::kFirst, Dedup::kSecond, Dedup::kBoth}) {
    for (bool const sizes_first : {false, true}) {
      expect_same_bits({.dedup = dedup, .sizes_first = sizes_first, .micro_batches = 2}, 2);
    }
  }
}

TEST(PrioritizedUpdates, AdmitEvictAndPromoteRowsAsThePlainScheduleDoes) {
  expect_same_bits({.min_count = 2}, 2);
  expect_same_bits({.hot_count = 4}, 2);
  expect_same_bits({.high_water = 40}, 2);
  expect_same_bits({.time_to_live = 5}, 2);
  expect_same_bits({.micro_batches = 2, .min_count = 3, .hot_count = 5, .high_water = 50, .time_to_live = 9}, 4);
}

TEST(PrioritizedUpdates, GiveTheLastRowsOfATableToTheSameKeys) {
  expect_same_bits({.max_rows = 40}, 2);
  expect_same_bits({.micro_batches = 2, .min_count = 2, .max_rows = 30}, 3);
  expect_same_bits({.high_water = 45, .max_rows = 50}, 2);
  expect_same_bits({.micro_batches = 2, .min_count = 2, .hot_count = 4, .high_water = 58, .max_rows = 60}, 3);
}

TEST(PrioritizedUpdates, GradientsMayBeScaledBeforeTheyAreApplied) {
  expect_same_bits({.scales = true}, 2);
  expect_same_bits({.micro_batches = 2, .scales = true}, 3);
}

TEST(PrioritizedUpdates, RefuseWhatWouldReadStaleRowsAndMayBeGivenUp) {
  run_ranks(2, [](int rank, std::unique_ptr<Exchanger> exchanger) {
    ShardedTable tables(tables_of({}), std::move(exchanger));
    tables.begin_step(1);
    auto const own = batch_of(rank, 0, 0);
    auto present = tables.begin(own.features()), other = tables.begin(own.features()),
         next = tables.begin(own.features());
    tables.finish(*present);
    tables.finish(*other);
    std::vector<ShardedTable::Batch*> const now{present.get()}, following{next.get()}, twice{next.get(), next.get()};
    EXPECT_THROW(tables.read_ahead(twice, now), base::UsageError);
    EXPECT_THROW(tables.read_ahead(now, following), base::UsageError) << "one is finished, the other is not";
    return_all(tables, *other, own);
    EXPECT_THROW(tables.read_ahead(following, now), base::UsageError) << "the other's gradients are pending";
    tables.drop_gradients();
    tables.begin_step(2);
    tables.read_ahead(following, now);
    EXPECT_TRUE(tables.has_ahead());
    EXPECT_THROW(return_all(tables, *other, own), base::UsageError) << "its keys were not compared";
    return_all(tables, *present, own);
    EXPECT_THROW(tables.finish(*next), base::UsageError) << "gradients are not applied yet";
    tables.drop_gradients();
    tables.forget_ahead();
    EXPECT_FALSE(tables.has_ahead());
    EXPECT_THROW(tables.finish(*next), base::UsageError);
    auto again = tables.begin(own.features());
    tables.finish(*again);
    return_all(tables, *again, own);
    tables.apply_gradients(1, {.rate = 0.1});
  });
}

}  // namespace
}  // namespace headway::embedding
