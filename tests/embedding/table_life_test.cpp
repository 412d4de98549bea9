// SPDX-License-Identifier: Apache-2.0

// Conformance of tables: counts, admission, expiry and precision of rows.
//
// A key is pending until it was looked up min_count times; then it gets a row (admission). A row that was not looked up
// for more than time_to_live steps is expired. A row with fewer than hot_count lookups is cold: its embedding is
// bfloat16.

#include "headway/base/status.hpp"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/routing.hpp"
#include "table_fixture.hpp"
#include "table_oracle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace headway::embedding {
namespace {

class TableLifeTest : public TableTest {
 protected:
  /// A table with 500 rows inserted in step 1.
  static std::unique_ptr<Table> make_with_rows_of_step_1(TableOptions const& options) {
    auto table = GetParam().make(options);
    table->begin_step(1, 1);
    batch_from(0, 500).find_or_insert(*table);
    return table;
  }
};

TEST_P(TableLifeTest, EachLookupOfKnownKeysIsCountedOnceWhateverThreadsTakeIt) {
  auto const table = GetParam().make(options_of());
  std::mt19937_64 random(3);
  std::vector<std::uint64_t> ids(20'000);
  std::vector<std::uint32_t> counts(ids.size());
  for (auto& id : ids) id = random() % 50;  // Few ids, so that threads count the same rows.
  for (auto& count : counts) count = static_cast<std::uint32_t>(random() % 4);
  std::vector<std::uint64_t> different(50);
  std::iota(different.begin(), different.end(), 0);
  std::vector<RowId> rows(ids.size()), first_rows(different.size());
  std::vector<KeyStatus> statuses(ids.size());
  table->begin_step(1, 1);
  table->find_or_insert({.ids = different}, first_rows, {});
  table->begin_step(2, 2);
  table->find_or_insert({.ids = ids, .counts = counts}, rows, statuses);
  table->find_or_insert({.ids = ids}, rows, {});
  std::vector<std::uint32_t> expected(different.size(), 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    expected[ids[i]] += counts[i] + 1;
    ASSERT_EQ(rows[i], first_rows[ids[i]]);
    ASSERT_EQ(statuses[i], KeyStatus::kFound);
  }
  auto const records = table->export_records({.ids = different});
  EXPECT_EQ(records.counts, expected);
  EXPECT_EQ(records.steps, std::vector<std::uint32_t>(different.size(), 2));
}

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

TEST_P(TableLifeTest, PendingKeysOfFewestLookupsAreForgottenOnceTheyAreTooMany) {
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
  // 101 keys are pending in step 3, more than max_pending.
  EXPECT_EQ(table->size().pending, 75U) << "three quarters of what may wait";
  EXPECT_EQ(table->size().rows, 1U);
  EXPECT_EQ(table->statistics().forgotten, 26U);
}

TEST_P(TableLifeTest, PendingKeysThatWereLookedUpMoreOftenStayWhenOthersAreForgotten) {
  auto options = options_of();
  options.min_count = 5;
  options.max_pending = 100;
  auto const table = GetParam().make(options);
  table->begin_step(1, 1);
  batch_from(0, 75).find_or_insert(*table);
  batch_from(0, 75).find_or_insert(*table);
  batch_from(1'000, 500).find_or_insert(*table);
  table->begin_step(2, 2);
  auto const waiting = table->list_pending(0, kNumVirtualBuckets);
  EXPECT_EQ(waiting.ids.size(), 75U);
  EXPECT_TRUE(std::ranges::all_of(waiting.ids, [](auto id) { return id < 75; }));
  EXPECT_EQ(waiting.counts, std::vector<std::uint32_t>(75, 2));
  EXPECT_EQ(table->statistics().forgotten, 500U);
}

TEST_P(TableLifeTest, KeysOfAnyHashMayWaitForARowThoughOthersCameBefore) {
  auto options = options_of();
  options.min_count = 2;
  options.max_pending = 400;
  auto const table = GetParam().make(options);
  constexpr std::uint32_t kSteps = 100;
  for (std::uint32_t step = 1; step <= kSteps; ++step) {
    table->begin_step(step, step);
    batch_from(1'000 * step, 100).find_or_insert(*table);  // These ids never repeat.
  }
  auto const waiting = table->list_pending(0, kNumVirtualBuckets);
  std::size_t num_of_first_half = 0;
  for (auto const id : waiting.ids) num_of_first_half += id < 1'000 * kSteps / 2 ? 1 : 0;
  EXPECT_LT(num_of_first_half, 20U) << "old keys make room for new ones";
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
  // Each step sweeps one of 64 stripes, parts of the keys by hash.
  for (std::uint32_t step = 16; step < 16 + 64; ++step) {
    table->begin_step(step, step);
    batch_of({7, 8, 9}).find_or_insert(*table);
  }
  EXPECT_EQ(table->size().rows, 3U);
  EXPECT_EQ(table->statistics().expired, 500U) << "three of them when they were looked up again";
}

TEST_P(TableLifeTest, ExpiredRowsAreAbsentAtLookupThoughTheyAreNotYetRemoved) {
  auto options = options_of(400);
  options.time_to_live = 3;
  options.min_count = 2;
  auto const table = GetParam().make(options);
  auto all = batch_from(0, 400);
  all.counts.assign(400, 2);
  table->begin_step(1, 1);
  all.find_or_insert(*table);
  table->insert_or_assign(all.keys(), Vector(400 * kDim, 0.5F), all.statuses);
  table->begin_step(4, 4);
  auto some = batch_of({7, 8});
  some.find(*table);
  EXPECT_EQ(some.statuses, std::vector(2, KeyStatus::kFound)) << "after 3 steps";
  table->begin_step(5, 1);
  some.find(*table);
  EXPECT_EQ(some.statuses, std::vector(2, KeyStatus::kFound)) << "step 1 is in use";
  table->begin_step(5, 5);
  EXPECT_GT(table->size().rows, 300U) << "rows of other stripes are removed later";
  all.find(*table);
  EXPECT_EQ(all.statuses, std::vector(400, KeyStatus::kAbsent));
  EXPECT_EQ(all.embedding(7), initial_embedding({0, 7}));
  some.counts = {1, 2};
  some.find_or_insert(*table);
  EXPECT_EQ(some.statuses, (std::vector{KeyStatus::kPending, KeyStatus::kInserted})) << "as a key that is new";
  EXPECT_EQ(some.embedding(1), initial_embedding({0, 8})) << "and the full table has room for it";
  EXPECT_EQ(table->statistics().refused, 0U);
}

TEST_P(TableLifeTest, ATableThatImportsWhatAnotherOneHadExpiresTheSameRows) {
  auto options = options_of();
  options.time_to_live = 3;
  auto const table = make_with_rows_of_step_1(options);
  for (std::uint32_t step = 2; step <= 20; ++step) table->begin_step(step, step);
  auto const copy = GetParam().make(options);
  auto const records = table->export_records(table->list(0, kNumVirtualBuckets).keys());
  EXPECT_LT(records.ids.size(), 500U);
  copy->import_records(records, {});
  copy->resume_step(20, 20);
  EXPECT_EQ(copy->size().rows, table->size().rows);
  for (std::uint32_t step = 21; step <= 70; ++step) {
    table->begin_step(step, step);
    copy->begin_step(step, step);
    ASSERT_EQ(copy->list(0, kNumVirtualBuckets).ids, table->list(0, kNumVirtualBuckets).ids) << step;
  }
  EXPECT_EQ(table->size().rows, 0U);
}

TEST_P(TableLifeTest, AStepThatIsFarAheadSweepsAsMuchAsTheStepsBetween) {
  auto options = options_of();
  options.time_to_live = 3;
  auto const table = make_with_rows_of_step_1(options);
  // From step 1 to step 36: sweeps 35 of the 64 stripes.
  table->begin_step(5 + 31, 36);
  EXPECT_GT(table->size().rows, 150U);
  EXPECT_LT(table->size().rows, 350U);
  table->begin_step(1'000, 1'000);
  EXPECT_EQ(table->size().rows, 0U);
}

TEST_P(TableLifeTest, ColdRowsAreBfloat16UntilTheyAreLookedUpOftenEnough) {
  auto options = options_of();
  options.hot_count = 3;
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2});
  auto const exact = initial_embedding({0, 1});
  for (std::uint32_t step = 1; step < 3; ++step) {
    table->begin_step(step, step);
    batch.find_or_insert(*table);
    for (std::size_t i = 0; i < kDim; ++i) EXPECT_EQ(batch.embedding(0)[i], widen(round_to_nearest(exact[i])));
    EXPECT_EQ(table->size().cold_rows, 2U);
  }
  table->begin_step(3, 3);
  auto one = batch_of({1});
  auto const rounded = batch.embedding(0);
  one.find_or_insert(*table);
  EXPECT_EQ(table->size().cold_rows, 1U);
  EXPECT_EQ(table->statistics().promoted, 1U);
  EXPECT_EQ(one.embedding(0), rounded);
  table->update(one.keys(), one.rows, Vector(kDim, 0x1p-20F), {.learning_rate = 1});
  one.find(*table);
  for (std::size_t i = 0; i < kDim; ++i) EXPECT_EQ(one.embedding(0)[i], rounded[i] - 0x1p-20F) << "float32 keeps it";

  table->halve_counts();  // The row stays float32: it was looked up in this step, so it is in use.
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
                           .embeddings = Vector(500 * kDim, 0.5F),
                           .states = {}},
                          {});
  }
  EXPECT_EQ(table->size().cold_rows, 5'000U);
  table->begin_step(1, 1);
  auto batch = batch_from(0, 5'000);
  batch.find_or_insert(*table);
  EXPECT_EQ(table->statistics().promoted, 5'000U);
  EXPECT_EQ(batch.embeddings, Vector(5'000 * kDim, 0.5F));
}

TEST_P(TableLifeTest, BadArgumentsAreNamed) {
  auto options = options_of();
  options.min_count = 0;
  EXPECT_THROW(static_cast<void>(GetParam().make(options)), base::UsageError);
  // More rows than a table may have.
  EXPECT_THROW(static_cast<void>(GetParam().make(options_of(std::size_t{1} << 30))), base::UsageError);
  auto const table = GetParam().make(options_of());
  table->begin_step(7, 5);
  EXPECT_THROW(table->begin_step(6, 5), base::UsageError);
  EXPECT_THROW(table->begin_step(8, 9), base::UsageError);
  EXPECT_THROW(table->resume_step(6, 5), base::UsageError);
  EXPECT_THROW(table->evict(0), base::UsageError);  // The table has no eviction policy.
  EXPECT_THROW(static_cast<void>(table->list(3, 2)), base::UsageError);
  EXPECT_THROW(static_cast<void>(table->export_records(batch_of({1}).keys())), base::UsageError);  // It has no row.
  auto batch = batch_of({1, 2});
  batch.counts = {1};
  batch.make_room();
  EXPECT_THROW(table->find_or_insert(batch.keys(), batch.rows, {}), base::UsageError);
  EXPECT_EQ(table->size().rows, 0U);
}

INSTANTIATE_TABLES(TableLifeTest);

}  // namespace
}  // namespace headway::embedding
