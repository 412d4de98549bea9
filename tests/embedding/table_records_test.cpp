// SPDX-License-Identifier: Apache-2.0

// Conformance of tables: listing, export and import of records and pending keys.
//
// A record is a key with all that a table stores about it. A pending key has fewer than min_count lookups, so no row
// yet. A row with fewer than hot_count lookups is cold: its embedding is bfloat16.

#include "bucket.hpp"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/routing.hpp"
#include "table_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

class TableRecordsTest : public TableTest {};

std::vector<KeyStatus> import_into(Table& table, Records const& records) {
  std::vector<KeyStatus> statuses(records.ids.size());
  table.import_records(records, statuses);
  return statuses;
}

TEST_P(TableRecordsTest, TheLastRecordOfAnImportedKeyDecidesOnItsPrecision) {
  auto options = options_of();
  options.hot_count = 3;
  auto const table = GetParam().make(options);
  table->begin_step(5, 5);
  Vector embeddings(6 * kDim, 0.1F);
  std::fill(embeddings.begin() + 3 * kDim, embeddings.end(), 0.3F);
  auto const statuses = import_into(*table, {.ids = {1, 2, 3, 1, 2, 3},
                                             .tables = std::vector<std::uint32_t>(6, 0),
                                             .counts = {2, 1, 4, 2, 3, 2},
                                             .steps = {1, 1, 1, 2, 2, 2},
                                             .embeddings = embeddings,
                                             .states = {}});
  std::vector<KeyStatus> expected(3, KeyStatus::kInserted);
  expected.resize(6, KeyStatus::kFound);
  EXPECT_EQ(statuses, expected);
  EXPECT_EQ(table->size().cold_rows, 2U);
  EXPECT_EQ(table->statistics().promoted, 0U) << "counts of one key do not add up";
  auto batch = batch_of({1, 2, 3});
  batch.find(*table);
  Vector const cold(kDim, widen(round_to_nearest(0.3F)));
  EXPECT_EQ(batch.embedding(0), cold);
  EXPECT_EQ(batch.embedding(1), Vector(kDim, 0.3F));
  EXPECT_EQ(batch.embedding(2), cold);
  auto const exported = table->export_records(batch.keys());
  EXPECT_EQ(exported.counts, (std::vector<std::uint32_t>{2, 3, 2}));
  EXPECT_EQ(exported.steps, std::vector<std::uint32_t>(3, 2));
}

TEST_P(TableRecordsTest, LookupsBeforeAnImportCountForThePrecision) {
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
  Vector embeddings(6 * kDim, 0.1F);
  std::fill(embeddings.begin() + 2 * kDim, embeddings.end(), 0.3F);
  auto const statuses = import_into(*table, {.ids = {4, 3, 1, 2, 3, 4},
                                             .tables = std::vector<std::uint32_t>(6, 0),
                                             .counts = {9, 9, 3, 3, 2, 1},
                                             .steps = std::vector<std::uint32_t>(6, 0),
                                             .embeddings = embeddings,
                                             .states = {}});
  std::vector<KeyStatus> expected(6, KeyStatus::kFound);
  expected[2] = expected[3] = KeyStatus::kInserted;
  EXPECT_EQ(statuses, expected);
  EXPECT_EQ(table->size().pending, 0U);
  EXPECT_EQ(table->statistics().promoted, 1U) << "key 3, which has 3 + 2 lookups";
  auto batch = batch_of({1, 2, 3, 4});
  batch.find(*table);
  Vector const cold(kDim, widen(round_to_nearest(0.3F))), hot(kDim, 0.3F);
  EXPECT_EQ(batch.embedding(0), hot) << "2 + 3 lookups";
  EXPECT_EQ(batch.embedding(1), cold);
  EXPECT_EQ(batch.embedding(2), hot);
  EXPECT_EQ(batch.embedding(3), cold);
  auto const exported = table->export_records(batch.keys());
  EXPECT_EQ(exported.counts, (std::vector<std::uint32_t>{3, 3, 2, 1}));
  EXPECT_EQ(exported.steps, std::vector<std::uint32_t>(4, 0));
}

TEST_P(TableRecordsTest, WhatIsExportedCanBeImportedAndGoesOnAlike) {
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
    auto const train = [&](Table& trained, std::uint32_t step) {
      trained.begin_step(step, step);
      batch.find_or_insert(trained);
      Vector gradients(batch.embeddings.size());
      for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>((i + step) % 13) - 6;
      trained.update(batch.keys(), batch.rows, gradients, {.learning_rate = 0.01, .number = step});
    };
    for (std::uint32_t step = 1; step <= 3; ++step) train(*table, step);

    auto const copy = GetParam().make(options);
    for (std::uint32_t part = 0; part < 4; ++part) {  // Import part by part, as ranks would.
      auto const keys = table->list(first_bucket_of(part, 4), first_bucket_of(part + 1, 4));
      auto const statuses = import_into(*copy, table->export_records(keys.keys()));
      EXPECT_TRUE(std::ranges::all_of(statuses, [](auto each) { return each == KeyStatus::kInserted; }));
    }
    EXPECT_EQ(copy->size().rows, table->size().rows);
    train(*table, 4);
    auto const expected = batch.embeddings;
    train(*copy, 4);
    EXPECT_EQ(batch.embeddings, expected);
    auto const all = table->list(0, kNumVirtualBuckets);
    auto const one = table->export_records(all.keys()), other = copy->export_records(all.keys());
    EXPECT_EQ(one.embeddings, other.embeddings);
    EXPECT_EQ(one.states, other.states);
    EXPECT_EQ(one.counts, other.counts);
    EXPECT_EQ(one.steps, other.steps);
  }
}

TEST_P(TableRecordsTest, KeysThatWaitAreListedWithTheirCounts) {
  auto options = options_of();
  options.min_count = 5;
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2, 1});
  batch.counts = {2, 4, 1};
  batch.find_or_insert(*table);
  EXPECT_EQ(batch.statuses, std::vector(3, KeyStatus::kPending));
  EXPECT_EQ(batch.embedding(1), initial_embedding({0, 2}));
  EXPECT_EQ(table->size().rows, 0U);
  auto const waiting = table->list_pending(0, kNumVirtualBuckets);
  auto const copy = GetParam().make(options);
  copy->import_pending(waiting);
  EXPECT_EQ(copy->size().pending, 2U);
  auto next = batch_of({1, 2});
  next.find_or_insert(*copy);
  EXPECT_EQ(next.statuses, (std::vector{KeyStatus::kPending, KeyStatus::kInserted}));
  copy->insert_or_assign(next.keys(), next.embeddings, next.statuses);
  EXPECT_EQ(next.statuses, (std::vector{KeyStatus::kInserted, KeyStatus::kFound}));
  EXPECT_EQ(copy->size().pending, 0U);
}

TEST_P(TableRecordsTest, KeysThatWaitAreImportedWithTheirCountsAndGetNoRow) {
  auto options = options_of(2);
  options.min_count = 3;
  auto const table = GetParam().make(options);
  auto batch = batch_of({1, 2, 9});
  batch.counts = {3, 3, 1};
  batch.find_or_insert(*table);
  auto const before = table->export_records(batch_of({1, 2}).keys());
  table->begin_step(1, 1);
  table->import_pending({.ids = {1, 9, 10, 11, 11, 12},
                         .tables = std::vector<std::uint32_t>(6, 0),
                         .counts = {5, 7, 0, 4, 2, 0xffffffff},
                         .steps = {},
                         .embeddings = {},
                         .states = {}});
  EXPECT_EQ(table->size().rows, 2U);
  auto const after = table->export_records(batch_of({1, 2}).keys());
  EXPECT_EQ(after.counts, before.counts) << "a key with a row is passed over";
  EXPECT_EQ(after.steps, before.steps);
  auto const waiting = table->list_pending(0, kNumVirtualBuckets);
  std::map<std::uint64_t, std::uint32_t> counts;
  for (std::size_t i = 0; i < waiting.ids.size(); ++i) counts[waiting.ids[i]] = waiting.counts[i];
  // Counts of pending keys saturate at kMostPendingCount.
  EXPECT_EQ(counts, (std::map<std::uint64_t, std::uint32_t>{{9, 7}, {10, 0}, {11, 2}, {12, kMostPendingCount}}))
      << "the counts of the records, whatever there was before, and however often a key comes";
  EXPECT_EQ(table->size().pending, 4U);
  EXPECT_EQ(table->statistics().inserted, 2U);
  EXPECT_EQ(table->statistics().refused, 0U);
}

TEST_P(TableRecordsTest, RowsBeyondTheLimitAreEvictedAfterAnImportInTheOrderOfThePolicy) {
  for (auto const policy :
       {EvictionPolicy::kNone, EvictionPolicy::kLeastRecentlyUsed, EvictionPolicy::kLeastFrequentlyUsed}) {
    auto options = options_of(3);
    options.eviction = policy;
    auto const table = GetParam().make(options);
    EXPECT_EQ(table->evict_beyond_limit(), 0U);
    import_into(*table, {.ids = {1, 2, 3, 4, 5},
                         .tables = std::vector<std::uint32_t>(5, 0),
                         .counts = {5, 4, 3, 2, 1},
                         .steps = {1, 2, 3, 4, 5},
                         .embeddings = Vector(5 * kDim, 0.5F),
                         .states = {}});
    table->resume_step(5, 4);
    EXPECT_EQ(table->evict_beyond_limit(), 2U);
    auto left = table->list(0, kNumVirtualBuckets).ids;
    std::ranges::sort(left);
    bool const by_step = policy == EvictionPolicy::kLeastRecentlyUsed;
    EXPECT_EQ(left, by_step ? (std::vector<std::uint64_t>{3, 4, 5}) : (std::vector<std::uint64_t>{1, 2, 3}));
    EXPECT_EQ(table->statistics().evicted, 2U);
    EXPECT_EQ(table->evict_beyond_limit(), 0U);
  }
}

TEST_P(TableRecordsTest, KeysAreListedByBucketTableAndId) {
  auto const table = GetParam().make(options_of());
  auto random = random_source(4);
  auto batch = random_batch(random, 20'000, 5'000);
  batch.find_or_insert(*table);
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>> keys;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    auto const [table_id, id] = batch.id(i);
    keys.emplace(virtual_bucket_of(hash_of({.id = id, .table = table_id})), table_id, id);
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

INSTANTIATE_TABLES(TableRecordsTest);

}  // namespace
}  // namespace headway::embedding
