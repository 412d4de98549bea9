// SPDX-License-Identifier: Apache-2.0

// Conformance of tables: insertion, lookup, bags and erasure, compared with std::map. Every kind of table must pass. A
// table gives initial embeddings to absent keys, and to keys for which it has no room.

#include "headway/base/status.hpp"
#include "table_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace headway::embedding {
namespace {

void expect_rows_of_their_own(Batch const& batch) {
  std::map<RowId, Id> owner;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    ASSERT_EQ(owner.try_emplace(batch.rows[i], batch.id(i)).first->second, batch.id(i)) << "two keys have one row";
  }
}

TEST_P(TableTest, RandomHistoriesAreThoseOfAMap) {
  for (auto const [batch_size, num_ids, steps] :
       std::vector<std::array<std::size_t, 3>>{{7, 40, 400}, {9'000, 30'000, 24}}) {
    auto random = random_source(batch_size);
    auto const table = GetParam().make(options_of());
    std::map<Id, Vector> oracle;
    for (std::size_t step = 0; step < steps; ++step) {
      auto batch = random_batch(random, random() % batch_size, num_ids);
      if (step == steps / 2) {
        table->clear();
        oracle.clear();
      }
      switch (random() % 4) {
        case 0:
          batch.find(*table);
          for (std::size_t i = 0; i < batch.ids.size(); ++i) {
            bool const is_there = oracle.contains(batch.id(i));
            ASSERT_EQ(batch.statuses[i], is_there ? KeyStatus::kFound : KeyStatus::kAbsent) << step;
            ASSERT_EQ(batch.rows[i] != RowId::kNone, is_there);
            ASSERT_EQ(batch.embedding(i), is_there ? oracle.at(batch.id(i)) : initial_embedding(batch.id(i)));
          }
          break;
        case 1:
          table->erase(batch.keys());
          for (std::size_t i = 0; i < batch.ids.size(); ++i) oracle.erase(batch.id(i));
          break;
        case 2:
          batch.make_room();
          for (float& value : batch.embeddings) value = static_cast<float>(random() % 1'000);
          table->insert_or_assign(batch.keys(), batch.embeddings, batch.statuses);
          for (std::size_t i = 0; i < batch.ids.size(); ++i) {
            bool const is_new = oracle.insert_or_assign(batch.id(i), batch.embedding(i)).second;
            ASSERT_EQ(batch.statuses[i], is_new ? KeyStatus::kInserted : KeyStatus::kFound) << step;
          }
          break;
        default:
          batch.find_or_insert(*table);
          for (std::size_t i = 0; i < batch.ids.size(); ++i) {
            auto const [at, is_new] = oracle.try_emplace(batch.id(i), initial_embedding(batch.id(i)));
            ASSERT_EQ(batch.statuses[i], is_new ? KeyStatus::kInserted : KeyStatus::kFound) << step;
            ASSERT_EQ(batch.embedding(i), at->second);
          }
          expect_rows_of_their_own(batch);
      }
      ASSERT_EQ(table->size().rows, oracle.size());
    }
    EXPECT_EQ(table->statistics().inserted - table->statistics().erased, oracle.size());
    table->clear();
    EXPECT_EQ(table->size().rows, 0U);
    auto batch = random_batch(random, 100, num_ids);
    batch.find(*table);
    EXPECT_TRUE(std::ranges::all_of(batch.statuses, [](auto each) { return each == KeyStatus::kAbsent; }));
  }
}

TEST_P(TableTest, RowsStayWhereTheyAreWhileKeysGrow) {
  auto const table = GetParam().make(options_of());
  auto first = batch_of({3, 1, 4, 1, 5});
  first.find_or_insert(*table);
  EXPECT_EQ(first.rows[1], first.rows[3]);
  EXPECT_EQ((std::set<RowId>(first.rows.begin(), first.rows.end()).size()), 4U);
  for (std::uint64_t i = 1; i < 40; ++i) {
    Batch more;
    for (std::uint64_t id = 0; id < 10'000; ++id) more.ids.push_back(i * 10'000 + id);
    more.tables.assign(more.ids.size(), 0);
    more.find_or_insert(*table);
  }
  auto again = batch_of(first.ids);
  again.find(*table);
  EXPECT_EQ(again.rows, first.rows);
  EXPECT_EQ(again.embeddings, first.embeddings);
  EXPECT_EQ(table->size().rows, 390'004U);
}

TEST_P(TableTest, WhatDoesNotFitIsSaidAndCounted) {
  auto const table = GetParam().make(options_of(5));
  auto batch = batch_of({10, 11, 10, 12, 13, 14, 15, 16, 12, 15});
  batch.find_or_insert(*table);
  auto const in = KeyStatus::kInserted, found = KeyStatus::kFound, no_room = KeyStatus::kNoRoom;
  EXPECT_EQ(batch.statuses, (std::vector{in, in, found, in, in, in, no_room, no_room, found, no_room}));
  EXPECT_EQ(batch.embedding(6), initial_embedding({0, 15}));
  EXPECT_EQ(table->size().rows, 5U);
  EXPECT_EQ(table->statistics().refused, 3U);

  table->erase(batch_of({11}).keys());
  auto next = batch_of({15, 16, 10});
  next.make_room();
  table->insert_or_assign(next.keys(), next.embeddings, next.statuses);
  EXPECT_EQ(next.statuses, (std::vector{in, no_room, found}));
  EXPECT_EQ(table->statistics().refused, 4U);
  next.find(*table);
  EXPECT_EQ(next.embedding(0), Vector(kDim, -99));  // Assigned above: the values of make_room().
  EXPECT_EQ(next.embedding(1), initial_embedding({0, 16}));
}

TEST_P(TableTest, TheLastOfSeveralVectorsHolds) {
  auto const table = GetParam().make(options_of());
  auto batch = batch_of(std::vector<std::uint64_t>(5'000, 8));
  batch.make_room();
  for (std::size_t i = 0; i < batch.embeddings.size(); ++i) batch.embeddings[i] = static_cast<float>(i);
  table->insert_or_assign(batch.keys(), batch.embeddings, {});
  auto const last = batch.embedding(batch.ids.size() - 1);
  auto one = batch_of({8});
  one.find(*table);
  EXPECT_EQ(one.embedding(0), last);
  EXPECT_EQ(table->size().rows, 1U);
}

TEST_P(TableTest, BagsAreSumsOfWhatTheirKeysHave) {
  auto options = options_of();
  options.hot_count = 2;
  auto const table = GetParam().make(options);
  auto known = batch_of({10, 11, 12});
  known.find_or_insert(*table);
  auto again = batch_of({11});
  table->begin_step(1, 1);
  again.find_or_insert(*table);  // With 2 lookups (hot_count), 11 is float32; 10 and 12 are bfloat16, 13 is absent.
  auto unique = batch_of({13, 12, 11, 10});
  unique.find(*table);
  std::vector<std::uint32_t> const inverse_indices{0, 1, 1, 2, 3, 0, 2};
  std::vector<std::int64_t> const offsets{0, 0, 3, 4, 7, 7};
  Vector const weights{1, 2, -1, 0.5F, 3, 4, -2};
  for (bool const has_offsets : {false, true}) {
    for (bool const has_weights : {false, true}) {
      Bags bags;
      if (has_offsets) bags.offsets = offsets;
      if (has_weights) bags.weights = weights;
      std::size_t const num_bags = has_offsets ? offsets.size() - 1 : inverse_indices.size();
      Vector out(num_bags * kDim, -99);
      table->gather_bags(unique.keys(), unique.rows, inverse_indices, bags, out);
      for (std::size_t bag = 0; bag < num_bags; ++bag) {
        Vector sum(kDim, 0);
        auto const begin = has_offsets ? static_cast<std::size_t>(offsets[bag]) : bag;
        auto const end = has_offsets ? static_cast<std::size_t>(offsets[bag + 1]) : bag + 1;
        for (std::size_t i = begin; i < end; ++i) {
          for (std::size_t j = 0; j < kDim; ++j) {
            sum[j] += (has_weights ? weights[i] : 1) * unique.embedding(inverse_indices[i])[j];
          }
        }
        for (std::size_t j = 0; j < kDim; ++j) ASSERT_NEAR(out[bag * kDim + j], sum[j], 1e-6) << bag;
      }
    }
  }
  Vector out(kDim);
  EXPECT_THROW(table->gather_bags(unique.keys(), unique.rows, inverse_indices, {}, out), base::UsageError);
}

TEST_P(TableTest, ReadersMayOverlap) {
  auto const table = GetParam().make(options_of());
  std::mt19937_64 random(5);
  auto batch = random_batch(random, 20'000, 1'000);
  batch.find_or_insert(*table);
  {
    std::vector<std::jthread> readers;
    for (int reader = 0; reader < 4; ++reader) {
      readers.emplace_back([&table, &batch] {
        Batch own{.ids = batch.ids, .tables = batch.tables};
        own.find(*table);
        EXPECT_EQ(own.rows, batch.rows);
        EXPECT_EQ(own.embeddings, batch.embeddings);
      });
    }
  }
}

TEST_P(TableTest, BadArgumentsAreNamedAndChangeNothing) {
  auto const table = GetParam().make(options_of());
  auto batch = batch_of({1, 2, 3});
  batch.make_room();
  auto const one = std::span(batch.rows).first(1);
  EXPECT_THROW(table->find_or_insert(batch.keys(), one, {}), base::UsageError);
  EXPECT_THROW(table->find_or_insert(batch.keys(), batch.rows, std::span(batch.statuses).first(2)), base::UsageError);
  EXPECT_THROW(table->insert_or_assign(batch.keys(), std::span(batch.embeddings).first(2), {}), base::UsageError);
  EXPECT_THROW(table->gather(batch.keys(), batch.rows, std::span(batch.embeddings).first(2)), base::UsageError);
  batch.tables.pop_back();
  EXPECT_THROW(table->find_or_insert(batch.keys(), batch.rows, {}), base::UsageError);
  EXPECT_THROW(table->erase(batch.keys()), base::UsageError);
  batch.tables.push_back(0);
  batch.rows[2] = RowId{1'000'000};
  EXPECT_THROW(table->gather(batch.keys(), batch.rows, batch.embeddings), base::UsageError);
  EXPECT_EQ(table->size().rows, 0U);
  // None, one more than the maximum, and a number whose rounding up would overflow.
  for (std::size_t const dim : {std::size_t{0}, (std::size_t{1} << 20) + 1, ~std::size_t{15}}) {
    EXPECT_THROW(static_cast<void>(GetParam().make({.dim = dim})), base::UsageError);
  }
}

INSTANTIATE_TABLES(TableTest);

}  // namespace
}  // namespace headway::embedding
