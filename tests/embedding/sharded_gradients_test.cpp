// SPDX-License-Identifier: Apache-2.0

// Gradients of a ShardedTable: any number of ranks trains to the rows of one rank that has all their batches.
//
// return_gradients() sends gradients to the owners of the keys, which keep them until apply_gradients() updates the
// rows. The variable `merged` is the index of a merged table: tables of equal options that share storage.

#include "headway/base/status.hpp"
#include "sharded_table_fixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

class ShardedGradientsTest : public testing::TestWithParam<Mode> {};

/// Looks up two batches, returns the gradients of the first and twice those of the second, and applies them together.
/// @returns the norm of the gradients, before they are doubled
double train_two(ShardedTable& tables, RankBatch const& first, RankBatch const& second) {
  tables.begin_step(1);
  double norm = 0;
  {
    auto const one = tables.begin(first.features()), two = tables.begin(second.features());
    tables.finish(*one);
    tables.finish(*two);
    for (auto const& [batch, own] : {std::pair(one.get(), &first), std::pair(two.get(), &second)}) {
      std::vector<std::span<float const>> const views(own->gradients.begin(), own->gradients.end());
      tables.return_gradients(*batch, views);
      if (own == &second) tables.return_gradients(*batch, views);
    }
  }
  norm = tables.gradient_norm();
  tables.scale_gradients(2);
  EXPECT_EQ(tables.gradient_norm(), 2 * norm);
  tables.apply_gradients(1, {.rate = 0.5, .of_tables = {{kTags, 0.25}}}, 4);  // Step 1; divides gradients by 4.
  EXPECT_EQ(tables.gradient_norm(), 0) << "none are left";
  return norm;
}

TEST_P(ShardedGradientsTest, GradientsOfSeveralBatchesAreAddedAndTablesHaveTheirRates) {
  auto const [size, dedup, optimizer, sizes] = GetParam();
  std::mt19937 random(9);
  std::vector<RankBatch> first, second;
  for (int rank = 0; rank < size; ++rank) {
    first.push_back(random_batch(random));
    second.push_back(random_batch(random));
  }
  ShardedTable alone(tables_with(optimizer), make_local_exchanger());
  double const expected_norm = train_two(alone, join(first), join(second));
  EXPECT_GT(expected_norm, 0);
  Contents expected, all;
  add_contents(expected, alone);
  std::vector<Contents> contents(static_cast<std::size_t>(size));
  run_ranks(size,
            [&, dedup = dedup, optimizer = optimizer, sizes = sizes](int rank, std::unique_ptr<Exchanger> exchanger) {
              auto const at = static_cast<std::size_t>(rank);
              ShardedTable tables(tables_with(optimizer), with(sizes, std::move(exchanger)), {.dedup = dedup});
              EXPECT_NEAR(train_two(tables, first[at], second[at]), expected_norm, 1e-9 * expected_norm);
              add_contents(contents[at], tables);
            });
  for (auto& each : contents) all.merge(each);
  EXPECT_EQ(all, expected);
}

INSTANTIATE_TEST_SUITE_P(Modes, ShardedGradientsTest, all_modes());

TEST(ShardedGradients, OnlyTablesWithAGradientOfSomeRankAreUpdated) {
  std::mt19937 random(1);
  std::vector<RankBatch> const batches{random_batch(random), random_batch(random)};
  run_ranks(2, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
    auto const& own = batches[static_cast<std::size_t>(rank)];
    ShardedTable tables(tables_with(kernels::OptimizerKind::kAdam), std::move(exchanger));
    auto const batch = tables.begin(own.features());
    tables.finish(*batch);
    Contents before, after;
    add_contents(before, tables);
    // An empty vector: this rank has no gradient of the merged table.
    train(tables, *batch, {rank == 0 ? own.gradients[0] : std::vector<float>(), {}}, 1);
    add_contents(after, tables);
    for (auto const& [key, values] : after) {
      if (key.first == kItems) {
        EXPECT_EQ(values, before[key]) << "no rank has a gradient of this table";
      }
    }
    EXPECT_NE(after, before) << "rank 0 has gradients of the other one";
  });
}

/// Contents of tables on one rank after a step of SGD with these rates. If `drops`, drop_gradients() comes before it.
Contents contents_after_step(StepRates const& rates, bool drops = false) {
  std::mt19937 random(2);
  RankBatch const own = random_batch(random);
  ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), make_local_exchanger());
  auto const batch = tables.begin(own.features());
  tables.finish(*batch);
  std::vector<std::span<float const>> const views(own.gradients.begin(), own.gradients.end());
  tables.return_gradients(*batch, views);
  if (drops) tables.drop_gradients();
  tables.apply_gradients(1, rates);
  Contents contents;
  add_contents(contents, tables);
  return contents;
}

TEST(ShardedGradients, ATableLearnsAtItsOwnRate) {
  auto const both = contents_after_step({.rate = 0.5, .of_tables = {{kTags, 0.25}}});
  auto const fast = contents_after_step({.rate = 0.5}), slow = contents_after_step({.rate = 0.25});
  for (auto const& [key, values] : both) {
    EXPECT_EQ(values, key.first == kTags ? slow.at(key) : fast.at(key)) << "table " << key.first;
  }
  EXPECT_NE(fast, slow);
  EXPECT_EQ(contents_after_step({.rate = 0.5}, true), contents_after_step({.rate = 0})) << "dropped";
}

TEST(ShardedGradients, RatesThatAreNoNumbersChangeNothing) {
  ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), make_local_exchanger());
  EXPECT_THROW(tables.apply_gradients(1, {.rate = 0.1, .of_tables = {{kItems, std::nan("")}}}), base::UsageError);
  EXPECT_THROW(tables.apply_gradients(0, {.rate = 0.1}), base::UsageError);
  EXPECT_THROW(tables.apply_gradients(1, {.rate = 0.1}, 0), base::UsageError);
}

TEST(ShardedGradients, AGradientIsAppliedIfItsKeyHasARowByThen) {
  for (bool const reads_norm : {false, true}) {
    auto options = tables_with(kernels::OptimizerKind::kSgd);
    options.resize(1);
    options[0].options.min_count = 2;
    ShardedTable tables(options, make_local_exchanger());
    std::int64_t const id = 7, length = 1;
    std::vector<Feature> const features{{.name = "user", .table = kUsers, .ids = {&id, 1}, .lengths = {&length, 1}}};
    auto const first = tables.begin(features);
    tables.finish(*first);
    EXPECT_EQ(tables.table(0).size().rows, 0U) << "it waits for a row";
    std::vector<float> const gradients(3, 1);
    std::vector<std::span<float const>> const views{gradients};
    tables.return_gradients(*first, views);
    tables.finish(*tables.begin(features));
    if (reads_norm) {
      EXPECT_EQ(tables.gradient_norm(), std::sqrt(3.0));
    }
    tables.apply_gradients(1, {.rate = 0.5});
    std::vector<float> expected(3);
    Initializer::uniform(-1, 1, 5).fill({.id = 7, .table = kUsers}, expected);
    for (float& value : expected) value -= 0.5F;
    auto const records = tables.table(0).export_records(tables.table(0).list(0, kNumVirtualBuckets).keys());
    EXPECT_EQ(records.embeddings, expected);
  }
}

TEST(ShardedGradients, GradientsOfWeightsTimesWeightsAreTheLoss) {
  std::mt19937 random(4);
  for (int const size : {1, 2}) {
    std::vector<RankBatch> const batches{random_batch(random), random_batch(random)};
    run_ranks(size, [&](int rank, std::unique_ptr<Exchanger> exchanger) {
      auto const& own = batches[static_cast<std::size_t>(rank)];
      ShardedTable tables(tables_with(kernels::OptimizerKind::kSgd), std::move(exchanger));
      auto features = own.features();
      features[2].pooling = Pooling::kMean;
      auto const batch = tables.begin(features, {.keeps_embeddings = true});  // weight_gradients() needs them.
      tables.finish(*batch);
      auto const outputs = expand_all(tables, *batch);
      for (std::size_t merged = 0; merged < 2; ++merged) {
        auto const& gradients = own.gradients[merged];
        // The loss is the dot product of outputs and gradients, which is linear in the weights of the ids.
        double loss = 0, sum = 0;
        for (std::size_t i = 0; i < gradients.size(); ++i) loss += gradients[i] * outputs[merged][i];
        std::vector<float> weights(merged == 0 ? own.users.size() : own.items.size(), 1);
        if (merged == 0) weights.insert(weights.end(), own.tag_weights.begin(), own.tag_weights.end());
        std::vector<float> of_weights(weights.size());
        tables.weight_gradients(*batch, merged, gradients, of_weights);
        for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * of_weights[i];
        EXPECT_NEAR(sum, loss, 1e-4) << "merged table " << merged;
        EXPECT_NE(loss, 0);
      }
      auto const without = tables.begin(features);
      tables.finish(*without);
      std::vector<float> room(own.items.size());
      EXPECT_THROW(tables.weight_gradients(*without, 1, own.gradients[1], room), base::UsageError);
    });
  }
}

}  // namespace
}  // namespace headway::embedding
