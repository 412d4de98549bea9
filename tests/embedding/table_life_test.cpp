// How rows of a table come, change and go: counts, admission, precision, optimizers, and what is exported.

#include "headway/comm/status.hpp"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/routing.hpp"
#include "table_fixture.hpp"
#include "table_oracle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

class TableLifeTest : public TableTest {};

TEST_P(TableLifeTest, RandomHistoriesWithAdmissionAndEvictionAreThoseOfTheRules) {
  for (auto const policy :
       {EvictionPolicy::kNone, EvictionPolicy::kLeastRecentlyUsed, EvictionPolicy::kLeastFrequentlyUsed}) {
    for (std::uint32_t const min_count : {1U, 3U}) {
      auto options = options_of(300);
      options.eviction = policy;
      options.high_water = 250;
      options.low_water = 200;
      options.min_count = min_count;
      options.max_pending = 150;
      auto const table = GetParam().make(options);
      Oracle oracle(options);
      auto random = random_source(min_count);
      for (std::uint32_t step = 1; step < 120; ++step) {
        std::uint32_t const oldest = step - static_cast<std::uint32_t>(random() % std::min(step, 3U));
        table->begin_step(step, oldest);
        oracle.begin_step(step, oldest);
        auto batch = random_batch(random, random() % 150, 100 + random() % 400);
        for (std::size_t i = 0; i < batch.ids.size(); ++i) {
          batch.counts.push_back(static_cast<std::uint32_t>(1 + random() % 2));
        }
        batch.find_or_insert(*table);
        ASSERT_EQ(batch.statuses, oracle.find_or_insert(batch.keys())) << step;
        ASSERT_EQ(table->size().rows, oracle.rows.size()) << step;
        ASSERT_EQ(table->size().pending, oracle.pending.size()) << step;
      }
      auto const listed = table->list(0, kNumVirtualBuckets);
      ASSERT_EQ(listed.ids.size(), oracle.rows.size());
      auto const records = table->export_records(listed.keys());
      for (std::size_t i = 0; i < records.ids.size(); ++i) {
        auto const& row = oracle.rows.at({records.tables[i], records.ids[i]});
        ASSERT_EQ(records.counts[i], row.count);
        ASSERT_EQ(records.steps[i], row.step);
      }
      auto const waiting = table->list_pending(0, kNumVirtualBuckets);
      ASSERT_EQ(waiting.ids.size(), oracle.pending.size());
      for (std::size_t i = 0; i < waiting.ids.size(); ++i) {
        ASSERT_EQ(waiting.counts[i], oracle.pending.at({waiting.tables[i], waiting.ids[i]}));
      }
      auto const counts = table->statistics();
      EXPECT_EQ(counts.inserted - counts.evicted, oracle.rows.size());
      EXPECT_EQ(counts.evicted == 0, policy == EvictionPolicy::kNone);
      if (policy == EvictionPolicy::kNone) {
        EXPECT_GT(counts.refused, 0U);
      }
    }
  }
}

TEST_P(TableLifeTest, PendingKeysAreForgottenOnceTheyAreTooMany) {
  auto options = options_of();
  options.min_count = 2;
  options.max_pending = 100;
  auto const table = GetParam().make(options);
  table->begin_step(1, 1);
  batch_from(0, 100).find_or_insert(*table);
  batch_of({1'000, 1'000}).find_or_insert(*table);
  table->begin_step(2, 2);
  EXPECT_EQ(table->size().pending, 100U);
  batch_from(100, 1).find_or_insert(*table);
  table->begin_step(3, 3);
  table->begin_step(4, 4);
  EXPECT_EQ(table->size().pending, 0U);
  EXPECT_EQ(table->size().rows, 1U);
  EXPECT_EQ(table->statistics().forgotten, 101U);
}

TEST_P(TableLifeTest, RowsThatAreNotLookedUpExpireWithin64Steps) {
  auto options = options_of();
  options.time_to_live = 10;
  auto const table = GetParam().make(options);
  Batch all;
  for (std::uint64_t id = 0; id < 500; ++id) all.ids.push_back(id);
  all.tables.assign(500, 0);
  table->begin_step(5, 5);
  all.find_or_insert(*table);
  for (std::uint32_t step = 6; step <= 15; ++step) table->begin_step(step, step);
  EXPECT_EQ(table->size().rows, 500U);
  for (std::uint32_t step = 16; step < 16 + 64; ++step) {
    table->begin_step(step, step);
    batch_of({7, 8, 9}).find_or_insert(*table);
  }
  EXPECT_EQ(table->size().rows, 3U);
  EXPECT_EQ(table->statistics().expired, 497U);
}

TEST_P(TableLifeTest, ColdRowsAreBfloat16UntilTheyAreLookedUpOftenEnough) {
  auto options = options_of();
  options.hot_count = 3;
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2});
  auto const exact = initial_vector({0, 1});
  for (std::uint32_t step = 1; step < 3; ++step) {
    table->begin_step(step, step);
    batch.find_or_insert(*table);
    for (std::size_t i = 0; i < kDim; ++i) EXPECT_EQ(batch.vector(0)[i], widen(round_to_nearest(exact[i])));
    EXPECT_EQ(table->size().cold_rows, 2U);
  }
  table->begin_step(3, 3);
  auto one = batch_of({1});
  auto const rounded = batch.vector(0);
  one.find_or_insert(*table);
  EXPECT_EQ(table->size().cold_rows, 1U);
  EXPECT_EQ(table->statistics().promoted, 1U);
  EXPECT_EQ(one.vector(0), rounded);
  table->update(one.keys(), one.rows, Vector(kDim, 0x1p-20F), {.learning_rate = 1});
  one.find(*table);
  for (std::size_t i = 0; i < kDim; ++i) EXPECT_EQ(one.vector(0)[i], rounded[i] - 0x1p-20F) << "float32 keeps it";

  table->halve_counts();  // Nobody uses it, but it was looked up in this step.
  EXPECT_EQ(table->size().cold_rows, 1U);
  table->begin_step(4, 4);
  table->halve_counts();
  EXPECT_EQ(table->size().cold_rows, 2U);
  EXPECT_EQ(table->statistics().demoted, 1U);
}

TEST_P(TableLifeTest, RowsBeyondTheLimitMayAllBecomeFloat32) {
  auto options = options_of(100);
  options.hot_count = 2;
  auto const table = GetParam().make(options);
  for (std::uint64_t first = 0; first < 5'000; first += 500) {
    auto const part = batch_from(first, 500);
    table->import_records({.ids = part.ids,
                           .tables = part.tables,
                           .counts = std::vector<std::uint32_t>(500, 1),
                           .steps = std::vector<std::uint32_t>(500, 0),
                           .vectors = Vector(500 * kDim, 0.5F),
                           .states = {}},
                          {});
  }
  EXPECT_EQ(table->size().cold_rows, 5'000U);
  table->begin_step(1, 1);
  auto batch = batch_from(0, 5'000);
  batch.find_or_insert(*table);
  EXPECT_EQ(table->statistics().promoted, 5'000U);
  EXPECT_EQ(batch.vectors, Vector(5'000 * kDim, 0.5F));
}

TEST_P(TableLifeTest, TheLastRecordOfAnImportedKeyDecidesOnItsPrecision) {
  auto options = options_of();
  options.hot_count = 3;
  auto const table = GetParam().make(options);
  table->begin_step(5, 5);
  Vector vectors(6 * kDim, 0.1F);
  std::fill(vectors.begin() + 3 * kDim, vectors.end(), 0.3F);
  std::vector<KeyStatus> statuses(6);
  table->import_records({.ids = {1, 2, 3, 1, 2, 3},
                         .tables = std::vector<std::uint32_t>(6, 0),
                         .counts = {2, 1, 4, 2, 3, 2},
                         .steps = {1, 1, 1, 2, 2, 2},
                         .vectors = vectors,
                         .states = {}},
                        statuses);
  std::vector<KeyStatus> expected(3, KeyStatus::kInserted);
  expected.resize(6, KeyStatus::kFound);
  EXPECT_EQ(statuses, expected);
  EXPECT_EQ(table->size().cold_rows, 2U);
  EXPECT_EQ(table->statistics().promoted, 0U) << "counts of one key do not add up";
  auto batch = batch_of({1, 2, 3});
  batch.find(*table);
  Vector const cold(kDim, widen(round_to_nearest(0.3F)));
  EXPECT_EQ(batch.vector(0), cold);
  EXPECT_EQ(batch.vector(1), Vector(kDim, 0.3F));
  EXPECT_EQ(batch.vector(2), cold);
  auto const exported = table->export_records(batch.keys());
  EXPECT_EQ(exported.counts, (std::vector<std::uint32_t>{2, 3, 2}));
  EXPECT_EQ(exported.steps, std::vector<std::uint32_t>(3, 2));
}

TEST_P(TableLifeTest, LookupsBeforeAnImportCountForThePrecision) {
  auto options = options_of();
  options.min_count = 3;
  options.hot_count = 5;
  auto const table = GetParam().make(options);
  auto waiting = batch_of({1, 1, 2});
  waiting.find_or_insert(*table);
  auto rows = batch_of({3, 3, 3, 4, 4, 4});
  rows.find_or_insert(*table);
  EXPECT_EQ(table->size().cold_rows, 2U);
  table->begin_step(1, 1);
  Vector vectors(6 * kDim, 0.1F);
  std::fill(vectors.begin() + 2 * kDim, vectors.end(), 0.3F);
  std::vector<KeyStatus> statuses(6);
  table->import_records({.ids = {4, 3, 1, 2, 3, 4},
                         .tables = std::vector<std::uint32_t>(6, 0),
                         .counts = {9, 9, 3, 3, 2, 1},
                         .steps = std::vector<std::uint32_t>(6, 0),
                         .vectors = vectors,
                         .states = {}},
                        statuses);
  std::vector<KeyStatus> expected(6, KeyStatus::kFound);
  expected[2] = expected[3] = KeyStatus::kInserted;
  EXPECT_EQ(statuses, expected);
  EXPECT_EQ(table->size().pending, 0U);
  EXPECT_EQ(table->statistics().promoted, 1U) << "key 3, which has 3 + 2 lookups";
  auto batch = batch_of({1, 2, 3, 4});
  batch.find(*table);
  Vector const cold(kDim, widen(round_to_nearest(0.3F))), hot(kDim, 0.3F);
  EXPECT_EQ(batch.vector(0), hot) << "2 + 3 lookups";
  EXPECT_EQ(batch.vector(1), cold);
  EXPECT_EQ(batch.vector(2), hot);
  EXPECT_EQ(batch.vector(3), cold);
  auto const exported = table->export_records(batch.keys());
  EXPECT_EQ(exported.counts, (std::vector<std::uint32_t>{3, 3, 2, 1}));
  EXPECT_EQ(exported.steps, std::vector<std::uint32_t>(4, 0));
}

TEST_P(TableLifeTest, SmallStepsOfColdRowsAreNotLostOnAverage) {
  auto options = options_of();
  options.initializer = Initializer::constant(1);
  options.hot_count = std::numeric_limits<std::uint32_t>::max();
  auto const table = GetParam().make(options);
  Batch batch;
  for (std::uint64_t id = 0; id < 4'000; ++id) batch.ids.push_back(id);
  batch.tables.assign(batch.ids.size(), 0);
  batch.find_or_insert(*table);
  Vector const gradients(batch.vectors.size(), 0x1p-12F);  // A 32nd of what bfloat16 tells apart above 1.
  constexpr int kSteps = 64;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    table->update(batch.keys(), batch.rows, gradients, {.learning_rate = -1, .number = step});
  }
  batch.find(*table);
  double sum = 0;
  for (float const value : batch.vectors) sum += value;
  EXPECT_NEAR(sum / static_cast<double>(batch.vectors.size()), 1 + kSteps * 0x1p-12, 0.0005);
}

TEST_P(TableLifeTest, AStepOfTheOptimizerUpdatesRowsAndCountsWhatHasNone) {
  auto options = options_of(2);
  options.optimizer = {.kind = kernels::OptimizerKind::kRowWiseAdagrad, .epsilon = 0};
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2, 3});
  batch.find_or_insert(*table);
  auto const before = batch.vectors;
  Vector gradients(3 * kDim, 3);
  table->update(batch.keys(), batch.rows, gradients, {.learning_rate = 0.5});
  table->update(batch.keys(), batch.rows, Vector(3 * kDim, 4), {.learning_rate = 0.5, .number = 2});
  batch.find(*table);
  for (std::size_t i = 0; i < 2 * kDim; ++i) EXPECT_NEAR(batch.vectors[i], before[i] - 0.5 - 0.4, 1e-6);
  EXPECT_EQ(batch.vector(2), initial_vector({0, 3}));
  EXPECT_EQ(table->statistics().dropped_gradients, 2U);
  EXPECT_THROW(table->update(batch.keys(), batch.rows, std::span(gradients).first(1), {.learning_rate = 1}),
               comm::UsageError);
  EXPECT_THROW(table->update(batch.keys(), batch.rows, gradients, {.learning_rate = std::nan("")}),
               std::invalid_argument);
}

constexpr std::array kAllOptimizers{kernels::OptimizerKind::kSgd, kernels::OptimizerKind::kAdagrad,
                                    kernels::OptimizerKind::kRowWiseAdagrad, kernels::OptimizerKind::kAdam,
                                    kernels::OptimizerKind::kRowWiseAdam};

/// Keys of a batch that come from once to very often, in any order.
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

/// What a table has of some keys, after two steps with the gradients of bags: by update() of their sums or
/// update_bags().
Records learn_from(Table& table, UniqueKeys const& unique, Bags const& bags, std::span<float const> gradients,
                   bool are_sums_given) {
  auto keys = unique.keys();
  keys.are_unique = true;
  std::vector<RowId> rows(unique.size());
  table.begin_step(1, 1);
  table.find_or_insert(keys, rows, {});
  auto known = rows;
  known[unique.numbers[1]] = RowId::kNone;  // Its gradient is dropped.
  for (std::uint64_t number = 1; number <= 2; ++number) {
    kernels::OptimizerStep const step{.learning_rate = 0.01, .number = number};
    if (are_sums_given) {
      std::vector<float> sums(unique.size() * table.dim());
      make_cpu_deduplicator()->add_up(unique, bags, gradients, sums);
      table.update(keys, known, sums, step);
    } else {
      table.update_bags(keys, known, unique.of_keys(), bags, gradients, step);
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

TEST_P(TableLifeTest, RowsLearnFromBagsAsFromTheSumsOfTheirGradients) {
  auto random = random_source(17);
  auto const unique = make_cpu_deduplicator()->deduplicate({.ids = keys_of_all_counts(random), .table = 2});
  std::size_t const num_keys = unique.numbers.size();
  std::vector<std::int64_t> offsets{0, 0, 7, 7, 1'000};
  while (offsets.back() < static_cast<std::int64_t>(num_keys)) {
    offsets.push_back(
        std::min(static_cast<std::int64_t>(num_keys), offsets.back() + static_cast<std::int64_t>(random() % 21)));
  }
  offsets.push_back(offsets.back());
  // Of which sums are exact in any order.
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
        auto const expected = learn_from(*one, unique, bags, gradients, true);
        auto const actual = learn_from(*other, unique, bags, gradients, false);
        float const tolerance = hot_count > 0 ? 0.01F : 1e-5F;  // bfloat16 may round to the neighbour.
        expect_near(actual.vectors, expected.vectors, tolerance);
        expect_near(actual.states, expected.states, 1e-5F);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(TableLifeTest, BagsThatDoNotFitTheirKeysAreRefused) {
  auto const table = GetParam().make(options_of());
  std::vector<std::uint64_t> const ids{7, 9, 7};
  auto const unique = make_cpu_deduplicator()->deduplicate({.ids = ids});
  std::vector<RowId> const rows(2);
  Vector const gradients(3 * kDim), weights(2, 1);
  auto const update = [&](Members const& members, Bags const& bags, std::span<float const> values) {
    table->update_bags(unique.keys(), rows, members, bags, values, {.learning_rate = 1});
  };
  update(unique.of_keys(), {}, gradients);
  EXPECT_EQ(table->statistics().dropped_gradients, 2U);
  auto with_few_begins = unique.of_keys(), with_few_numbers = unique.of_keys();
  with_few_begins.begins = with_few_begins.begins.first(2);
  with_few_numbers.numbers = with_few_numbers.numbers.first(2);
  EXPECT_THROW(update(with_few_begins, {}, gradients), comm::UsageError);
  EXPECT_THROW(update(with_few_numbers, {}, gradients), comm::UsageError);
  EXPECT_THROW(update(unique.of_keys(), {.weights = weights}, gradients), comm::UsageError);
  EXPECT_THROW(update(unique.of_keys(), {}, std::span(gradients).first(2 * kDim)), comm::UsageError);
}

TEST_P(TableLifeTest, WhatIsExportedCanBeImportedAndGoesOnAlike) {
  for (auto const kind : kAllOptimizers) {
    auto options = options_of();
    options.optimizer.kind = kind;
    options.hot_count = 2;
    auto const table = GetParam().make(options);
    std::mt19937_64 random(3);
    auto batch = random_batch(random, 900, 4'000);
    std::ranges::sort(batch.ids);
    batch.ids.erase(std::unique(batch.ids.begin(), batch.ids.end()), batch.ids.end());
    batch.tables.resize(batch.ids.size());
    auto const learn = [&](Table& learner, std::uint32_t step) {
      learner.begin_step(step, step);
      batch.find_or_insert(learner);
      Vector gradients(batch.vectors.size());
      for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>((i + step) % 13) - 6;
      learner.update(batch.keys(), batch.rows, gradients, {.learning_rate = 0.01, .number = step});
    };
    for (std::uint32_t step = 1; step <= 3; ++step) learn(*table, step);

    auto const copy = GetParam().make(options);
    std::vector<KeyStatus> statuses;
    for (std::uint32_t part = 0; part < 4; ++part) {  // Each part by itself, as ranks would do.
      auto const keys = table->list(first_bucket_of(part, 4), first_bucket_of(part + 1, 4));
      auto const records = table->export_records(keys.keys());
      statuses.resize(records.ids.size());
      copy->import_records(records, statuses);
      EXPECT_TRUE(std::ranges::all_of(statuses, [](auto each) { return each == KeyStatus::kInserted; }));
    }
    EXPECT_EQ(copy->size().rows, table->size().rows);
    learn(*table, 4);
    auto const expected = batch.vectors;
    learn(*copy, 4);
    EXPECT_EQ(batch.vectors, expected);
    auto const all = table->list(0, kNumVirtualBuckets);
    auto const one = table->export_records(all.keys()), other = copy->export_records(all.keys());
    EXPECT_EQ(one.vectors, other.vectors);
    EXPECT_EQ(one.states, other.states);
    EXPECT_EQ(one.counts, other.counts);
    EXPECT_EQ(one.steps, other.steps);
  }
}

TEST_P(TableLifeTest, KeysThatWaitAreListedWithTheirCounts) {
  auto options = options_of();
  options.min_count = 5;
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2, 1});
  batch.counts = {2, 4, 1};
  batch.find_or_insert(*table);
  EXPECT_EQ(batch.statuses, std::vector(3, KeyStatus::kPending));
  EXPECT_EQ(batch.vector(1), initial_vector({0, 2}));
  EXPECT_EQ(table->size().rows, 0U);
  auto const waiting = table->list_pending(0, kNumVirtualBuckets);
  auto const copy = GetParam().make(options);
  std::vector<RowId> rows(waiting.ids.size());
  copy->find_or_insert(waiting.keys(), rows, {});
  EXPECT_EQ(copy->size().pending, 2U);
  auto next = batch_of({1, 2});
  next.find_or_insert(*copy);
  EXPECT_EQ(next.statuses, (std::vector{KeyStatus::kPending, KeyStatus::kInserted}));
  copy->insert_or_assign(next.keys(), next.vectors, next.statuses);
  EXPECT_EQ(next.statuses, (std::vector{KeyStatus::kInserted, KeyStatus::kFound}));
  EXPECT_EQ(copy->size().pending, 0U);
}

TEST_P(TableLifeTest, KeysAreListedByBucketTableAndId) {
  auto const table = GetParam().make(options_of());
  auto random = random_source(4);
  auto batch = random_batch(random, 20'000, 5'000);
  batch.find_or_insert(*table);
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>> keys;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    auto const [number, id] = batch.id(i);
    keys.emplace(virtual_bucket_of(hash_of({.id = id, .table = number})), number, id);
  }
  for (auto const& [first, end] : {std::pair{0U, kNumVirtualBuckets}, {77U, 9'000U}, {500U, 501U}, {9U, 9U}}) {
    auto const listed = table->list(first, end);
    std::size_t i = 0;
    for (auto key = keys.lower_bound({first, 0, 0}); key != keys.lower_bound({end, 0, 0}); ++key, ++i) {
      ASSERT_LT(i, listed.ids.size());
      EXPECT_EQ(std::tuple(listed.tables[i], listed.ids[i]), std::tuple(std::get<1>(*key), std::get<2>(*key)));
    }
    EXPECT_EQ(listed.ids.size(), i);
  }
}

TEST_P(TableLifeTest, BadArgumentsAreNamed) {
  auto options = options_of();
  options.min_count = 0;
  EXPECT_THROW(static_cast<void>(GetParam().make(options)), comm::UsageError);
  auto const table = GetParam().make(options_of());
  table->begin_step(7, 5);
  EXPECT_THROW(table->begin_step(6, 5), comm::UsageError);
  EXPECT_THROW(table->begin_step(8, 9), comm::UsageError);
  EXPECT_THROW(table->evict(0), comm::UsageError);
  EXPECT_THROW(static_cast<void>(table->list(3, 2)), comm::UsageError);
  EXPECT_THROW(static_cast<void>(table->export_records(batch_of({1}).keys())), comm::UsageError);
  auto batch = batch_of({1, 2});
  batch.counts = {1};
  batch.make_room();
  EXPECT_THROW(table->find_or_insert(batch.keys(), batch.rows, {}), comm::UsageError);
  EXPECT_EQ(table->size().rows, 0U);
}

INSTANTIATE_TABLES(TableLifeTest);

}  // namespace
}  // namespace headway::embedding
