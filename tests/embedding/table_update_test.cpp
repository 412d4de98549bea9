// SPDX-License-Identifier: Apache-2.0

// Conformance of tables: optimizer steps, with gradients of keys or of bags.

#include "headway/base/status.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "table_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

namespace headway::embedding {
namespace {

class TableUpdateTest : public TableTest {};

TEST_P(TableUpdateTest, SmallStepsOfColdRowsAreNotLostOnAverage) {
  auto options = options_of();
  options.initializer = Initializer::constant(1);
  options.hot_count = std::numeric_limits<std::uint32_t>::max();  // All rows are cold: bfloat16.
  auto const table = GetParam().make(options);
  Batch batch;
  for (std::uint64_t id = 0; id < 4'000; ++id) batch.ids.push_back(id);
  batch.tables.assign(batch.ids.size(), 0);
  batch.find_or_insert(*table);
  Vector const gradients(batch.embeddings.size(), 0x1p-12F);  // 1/32 of the distance of bfloat16 values above 1.
  constexpr int kSteps = 64;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    table->update(batch.keys(), batch.rows, gradients, {.learning_rate = -1, .number = step});
  }
  batch.find(*table);
  double sum = 0;
  for (float const value : batch.embeddings) sum += value;
  EXPECT_NEAR(sum / static_cast<double>(batch.embeddings.size()), 1 + kSteps * 0x1p-12, 0.0005);
}

TEST_P(TableUpdateTest, AStepOfTheOptimizerUpdatesRowsAndCountsWhatHasNone) {
  auto options = options_of(2);
  options.optimizer = {.kind = kernels::OptimizerKind::kRowWiseAdagrad, .epsilon = 0};
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2, 3});
  batch.find_or_insert(*table);
  auto const before = batch.embeddings;
  Vector gradients(3 * kDim, 3);
  table->update(batch.keys(), batch.rows, gradients, {.learning_rate = 0.5});
  table->update(batch.keys(), batch.rows, Vector(3 * kDim, 4), {.learning_rate = 0.5, .number = 2});
  batch.find(*table);
  // Steps 0.5 * 3 / sqrt(9) and 0.5 * 4 / sqrt(9 + 16). Key 3 has no row, so both of its gradients are dropped.
  for (std::size_t i = 0; i < 2 * kDim; ++i) EXPECT_NEAR(batch.embeddings[i], before[i] - 0.5 - 0.4, 1e-6);
  EXPECT_EQ(batch.embedding(2), initial_embedding({0, 3}));
  EXPECT_EQ(table->statistics().dropped_gradients, 2U);
  EXPECT_THROW(table->update(batch.keys(), batch.rows, std::span(gradients).first(1), {.learning_rate = 1}),
               base::UsageError);
  EXPECT_THROW(table->update(batch.keys(), batch.rows, gradients, {.learning_rate = std::nan("")}),
               std::invalid_argument);
}

/// Shuffled ids, each of which comes from once to 9,999 times.
std::vector<std::uint64_t> keys_of_all_counts(std::mt19937_64& random) {
  std::vector<std::uint64_t> ids;
  std::uint64_t id = 0;
  for (std::size_t const count : {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1'000, 2'111, 9'999}) {
    ids.insert(ids.end(), count, id++);
  }
  for (int once = 0; once < 700; ++once) ids.push_back(id++);
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

/// Records of keys after two optimizer steps with the gradients of bags.
/// @param are_sums_given true: update() with sums of a Deduplicator; false: update_bags()
Records records_after_training(Table& table, UniqueKeys const& unique, Bags const& bags,
                               std::span<float const> gradients, bool are_sums_given) {
  auto keys = unique.keys();
  keys.are_unique = true;
  std::vector<RowId> rows(unique.size());
  table.begin_step(1, 1);
  table.find_or_insert(keys, rows, {});
  auto known = rows;
  known[unique.inverse_indices[1]] = RowId::kNone;  // Its gradient is dropped.
  for (std::uint64_t number = 1; number <= 2; ++number) {
    kernels::OptimizerStep const step{.learning_rate = 0.01, .number = number};
    if (are_sums_given) {
      std::vector<float> sums(unique.size() * table.dim());
      make_cpu_deduplicator()->reduce(unique, bags, gradients, sums);
      table.update(keys, known, sums, step);
    } else {
      table.update_bags(keys, known, unique.csr(), bags, gradients, step);
    }
  }
  EXPECT_EQ(table.statistics().dropped_gradients, 2U);
  return table.export_records(keys);
}

void expect_near(std::vector<float> const& actual, std::vector<float> const& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0F, std::abs(expected[i]))) << i;
  }
}

TEST_P(TableUpdateTest, RowsLearnFromBagsAsFromTheSumsOfTheirGradients) {
  auto random = random_source(17);
  auto const unique = make_cpu_deduplicator()->deduplicate({.ids = keys_of_all_counts(random), .table = 2});
  std::size_t const num_keys = unique.inverse_indices.size();
  std::vector<std::int64_t> offsets{0, 0, 7, 7, 1'000};
  while (offsets.back() < static_cast<std::int64_t>(num_keys)) {
    offsets.push_back(
        std::min(static_cast<std::int64_t>(num_keys), offsets.back() + static_cast<std::int64_t>(random() % 21)));
  }
  offsets.push_back(offsets.back());
  // Small integers: their sums are exact in any order.
  auto const integers = [&random](std::size_t size) {
    std::vector<float> values(size);
    for (auto& value : values) value = static_cast<float>(random() % 9) - 4;
    return values;
  };
  auto const weights = integers(num_keys);
  for (std::size_t const dim : {1, 5, 16, 64, 128, 132}) {
    for (auto const kind : kAllOptimizers) {
      for (int const choice : {0, 1, 2, 3}) {
        bool const has_offsets = choice % 2 == 1, has_weights = choice >= 2;
        std::uint32_t const hot_count = choice == 1 ? 4 : 0;
        SCOPED_TRACE(testing::Message() << "dim " << dim << " optimizer " << static_cast<int>(kind) << " offsets "
                                        << has_offsets << " weights " << has_weights);
        Bags bags;
        if (has_offsets) bags.offsets = offsets;
        if (has_weights) bags.weights = weights;
        auto const gradients = integers((has_offsets ? offsets.size() - 1 : num_keys) * dim);
        TableOptions const options{.dim = dim,
                                   .initializer = Initializer::uniform(-1, 1, 11),
                                   .optimizer = {.kind = kind, .weight_decay = 0.1},
                                   .hot_count = hot_count};
        auto const one = GetParam().make(options), other = GetParam().make(options);
        auto const expected = records_after_training(*one, unique, bags, gradients, true);
        auto const actual = records_after_training(*other, unique, bags, gradients, false);
        float const tolerance = hot_count > 0 ? 0.01F : 1e-5F;  // bfloat16 may round to the neighbour.
        expect_near(actual.embeddings, expected.embeddings, tolerance);
        expect_near(actual.states, expected.states, 1e-5F);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(TableUpdateTest, BagsThatDoNotFitTheirKeysAreRefused) {
  auto const table = GetParam().make(options_of());
  std::vector<std::uint64_t> const ids{7, 9, 7};
  auto const unique = make_cpu_deduplicator()->deduplicate({.ids = ids});
  std::vector<RowId> const rows(2);
  Vector const gradients(3 * kDim), weights(2, 1);
  auto const update = [&](CsrMap const& csr, Bags const& bags, std::span<float const> values) {
    table->update_bags(unique.keys(), rows, csr, bags, values, {.learning_rate = 1});
  };
  update(unique.csr(), {}, gradients);
  EXPECT_EQ(table->statistics().dropped_gradients, 2U);
  auto with_few_offsets = unique.csr(), with_few_inverse_indices = unique.csr();
  with_few_offsets.csr_offsets = with_few_offsets.csr_offsets.first(2);
  with_few_inverse_indices.inverse_indices = with_few_inverse_indices.inverse_indices.first(2);
  EXPECT_THROW(update(with_few_offsets, {}, gradients), base::UsageError);
  EXPECT_THROW(update(with_few_inverse_indices, {}, gradients), base::UsageError);
  EXPECT_THROW(update(unique.csr(), {.weights = weights}, gradients), base::UsageError);
  EXPECT_THROW(update(unique.csr(), {}, std::span(gradients).first(2 * kDim)), base::UsageError);
}

INSTANTIATE_TABLES(TableUpdateTest);

}  // namespace
}  // namespace headway::embedding
