// What every table does, whatever it is made of: beside std::map, and with others of another number of threads.

#include "headway/embedding/table.hpp"

#include "headway/comm/status.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::size_t kDim = 5;

struct Maker {
  std::string name;
  int num_threads;

  [[nodiscard]] std::unique_ptr<Table> make(TableOptions options) const {
    options.num_threads = num_threads;
    return make_cpu_table(options);
  }
};

TableOptions options_of(std::size_t max_rows = TableOptions().max_rows) {
  return {.dim = kDim, .initializer = Initializer::uniform(-1, 1, 11), .max_rows = max_rows};
}

using Id = std::pair<std::uint32_t, std::uint64_t>;
using Vector = std::vector<float>;

/// The keys of a batch, and what a table says of them.
struct Batch {
  std::vector<std::uint64_t> ids{};
  std::vector<std::uint32_t> tables{};
  std::vector<RowId> rows{};
  std::vector<KeyStatus> statuses{};
  Vector vectors{};

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables}; }
  [[nodiscard]] Id id(std::size_t i) const { return {tables[i], ids[i]}; }
  [[nodiscard]] Vector vector(std::size_t i) const {
    auto const begin = vectors.begin() + static_cast<std::ptrdiff_t>(i * kDim);
    return {begin, begin + static_cast<std::ptrdiff_t>(kDim)};
  }
  void find(Table const& table) {
    make_room();
    table.find(keys(), rows, statuses);
    table.gather(keys(), rows, vectors);
  }
  void find_or_insert(Table& table) {
    make_room();
    table.find_or_insert(keys(), rows, statuses);
    table.gather(keys(), rows, vectors);
  }
  void make_room() {
    rows.assign(ids.size(), RowId::kNone);
    statuses.assign(ids.size(), KeyStatus::kNoRoom);
    vectors.assign(ids.size() * kDim, -99);
  }
};

Batch random_batch(std::mt19937_64& random, std::size_t size, std::uint64_t num_ids) {
  Batch batch;
  for (std::size_t i = 0; i < size; ++i) {
    batch.ids.push_back(random() % num_ids * 0x1000100010001);
    batch.tables.push_back(static_cast<std::uint32_t>(random() % 3));
  }
  return batch;
}

Batch batch_of(std::vector<std::uint64_t> ids) {
  Batch batch{.ids = std::move(ids)};
  batch.tables.assign(batch.ids.size(), 0);
  return batch;
}

Vector initial_vector(Id id) {
  Vector vector(kDim);
  options_of().initializer.fill({.id = id.second, .table = id.first}, vector);
  return vector;
}

void expect_rows_of_their_own(Batch const& batch) {
  std::map<RowId, Id> owner;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    ASSERT_EQ(owner.try_emplace(batch.rows[i], batch.id(i)).first->second, batch.id(i)) << "two keys have one row";
  }
}

class TableTest : public testing::TestWithParam<Maker> {};

TEST_P(TableTest, RandomHistoriesAreThoseOfAMap) {
  for (auto const [batch_size, num_ids, steps] :
       std::vector<std::array<std::size_t, 3>>{{7, 40, 400}, {9'000, 30'000, 24}}) {
    std::mt19937_64 random(batch_size);
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
            ASSERT_EQ(batch.vector(i), is_there ? oracle.at(batch.id(i)) : initial_vector(batch.id(i)));
          }
          break;
        case 1:
          table->erase(batch.keys());
          for (std::size_t i = 0; i < batch.ids.size(); ++i) oracle.erase(batch.id(i));
          break;
        case 2:
          batch.make_room();
          for (float& value : batch.vectors) value = static_cast<float>(random() % 1'000);
          table->insert_or_assign(batch.keys(), batch.vectors, batch.statuses);
          for (std::size_t i = 0; i < batch.ids.size(); ++i) {
            bool const is_new = oracle.insert_or_assign(batch.id(i), batch.vector(i)).second;
            ASSERT_EQ(batch.statuses[i], is_new ? KeyStatus::kInserted : KeyStatus::kFound) << step;
          }
          break;
        default:
          batch.find_or_insert(*table);
          for (std::size_t i = 0; i < batch.ids.size(); ++i) {
            auto const [at, is_new] = oracle.try_emplace(batch.id(i), initial_vector(batch.id(i)));
            ASSERT_EQ(batch.statuses[i], is_new ? KeyStatus::kInserted : KeyStatus::kFound) << step;
            ASSERT_EQ(batch.vector(i), at->second);
          }
          expect_rows_of_their_own(batch);
      }
      ASSERT_EQ(table->size(), oracle.size());
    }
    EXPECT_EQ(table->statistics().inserted - table->statistics().erased, oracle.size());
    table->clear();
    EXPECT_EQ(table->size(), 0U);
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
  EXPECT_EQ(again.vectors, first.vectors);
  EXPECT_EQ(table->size(), 390'004U);
}

TEST_P(TableTest, WhatDoesNotFitIsSaidAndCounted) {
  auto const table = GetParam().make(options_of(5));
  auto batch = batch_of({10, 11, 10, 12, 13, 14, 15, 16, 12, 15});
  batch.find_or_insert(*table);
  auto const in = KeyStatus::kInserted, found = KeyStatus::kFound, no_room = KeyStatus::kNoRoom;
  EXPECT_EQ(batch.statuses, (std::vector{in, in, found, in, in, in, no_room, no_room, found, no_room}));
  EXPECT_EQ(batch.vector(6), initial_vector({0, 15}));
  EXPECT_EQ(table->size(), 5U);
  EXPECT_EQ(table->statistics().refused, 3U);

  table->erase(batch_of({11}).keys());
  auto next = batch_of({15, 16, 10});
  next.make_room();
  table->insert_or_assign(next.keys(), next.vectors, next.statuses);
  EXPECT_EQ(next.statuses, (std::vector{in, no_room, found}));
  EXPECT_EQ(table->statistics().refused, 4U);
  next.find(*table);
  EXPECT_EQ(next.vector(0), Vector(kDim, -99));
  EXPECT_EQ(next.vector(1), initial_vector({0, 16}));
}

TEST_P(TableTest, TheLastOfSeveralVectorsHolds) {
  auto const table = GetParam().make(options_of());
  auto batch = batch_of(std::vector<std::uint64_t>(5'000, 8));
  batch.make_room();
  for (std::size_t i = 0; i < batch.vectors.size(); ++i) batch.vectors[i] = static_cast<float>(i);
  table->insert_or_assign(batch.keys(), batch.vectors, {});
  auto const last = batch.vector(batch.ids.size() - 1);
  auto one = batch_of({8});
  one.find(*table);
  EXPECT_EQ(one.vector(0), last);
  EXPECT_EQ(table->size(), 1U);
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
        EXPECT_EQ(own.vectors, batch.vectors);
      });
    }
  }
}

TEST_P(TableTest, BadArgumentsAreNamedAndChangeNothing) {
  auto const table = GetParam().make(options_of());
  auto batch = batch_of({1, 2, 3});
  batch.make_room();
  auto const one = std::span(batch.rows).first(1);
  EXPECT_THROW(table->find_or_insert(batch.keys(), one, {}), comm::UsageError);
  EXPECT_THROW(table->find_or_insert(batch.keys(), batch.rows, std::span(batch.statuses).first(2)), comm::UsageError);
  EXPECT_THROW(table->insert_or_assign(batch.keys(), std::span(batch.vectors).first(2), {}), comm::UsageError);
  EXPECT_THROW(table->gather(batch.keys(), batch.rows, std::span(batch.vectors).first(2)), comm::UsageError);
  batch.tables.pop_back();
  EXPECT_THROW(table->find_or_insert(batch.keys(), batch.rows, {}), comm::UsageError);
  EXPECT_THROW(table->erase(batch.keys()), comm::UsageError);
  batch.tables.push_back(0);
  batch.rows[2] = RowId{1'000'000};
  EXPECT_THROW(table->gather(batch.keys(), batch.rows, batch.vectors), comm::UsageError);
  EXPECT_EQ(table->size(), 0U);
  for (std::size_t const dim : {std::size_t{0}, (std::size_t{1} << 20) + 1, ~std::size_t{15}}) {
    EXPECT_THROW(static_cast<void>(GetParam().make({.dim = dim})), comm::UsageError);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, TableTest, testing::Values(Maker{"cpu", 1}, Maker{"cpu_3_threads", 3}),
                         [](auto const& maker) { return maker.param.name; });

}  // namespace
}  // namespace headway::embedding
