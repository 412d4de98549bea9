// SPDX-License-Identifier: Apache-2.0

// Calls of a table that may overlap: alone they do what the calls do that they fuse, and beside each other no row is
// seen half updated and no limit is exceeded.

#include "headway/embedding/concurrent_table.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::size_t kDim = 8;
constexpr kernels::OptimizerStep kStep{.learning_rate = 1, .number = 1};

TableOptions options_of(int num_threads) {
  return {.dim = kDim,
          .initializer = Initializer::uniform(-1, 1, 11),
          .thread_pool = std::make_shared<base::ThreadPool>(num_threads)};
}

/// Options that change what a lookup does.
std::map<std::string, std::function<void(TableOptions&)>> const& variants() {
  static std::map<std::string, std::function<void(TableOptions&)>> const all{
      {"plain", [](TableOptions&) {}},
      {"limit", [](TableOptions& options) { options.max_rows = 900; }},
      {"lru",
       [](TableOptions& options) {
         options.max_rows = 900;
         options.high_water = 800;
         options.low_water = 700;
         options.eviction_batch = 64;
         options.eviction = EvictionPolicy::kLeastRecentlyUsed;
       }},
      {"admission", [](TableOptions& options) { options.min_count = 3; }},
      {"cold", [](TableOptions& options) { options.hot_count = 4; }},
      {"expiry", [](TableOptions& options) { options.time_to_live = 2; }},
  };
  return all;
}

class ConcurrentTableTest : public testing::TestWithParam<std::string> {};

TEST_P(ConcurrentTableTest, FusedCallsDoWhatTheirPartsDo) {
  auto options = options_of(3);
  variants().at(GetParam())(options);
  auto const fused = make_concurrent_table(options), apart = make_concurrent_table(options);
  std::mt19937_64 random(1);
  for (std::uint32_t step = 1; step < 30; ++step) {
    fused->begin_step(step, step);
    apart->begin_step(step, step);
    std::set<std::uint64_t> drawn;
    while (drawn.size() < 300) drawn.insert(random() % 2000);
    std::vector<std::uint64_t> ids(drawn.begin(), drawn.end());
    std::ranges::shuffle(ids, random);
    std::vector<std::uint32_t> tables(ids.size()), counts(ids.size());
    for (auto& table : tables) table = static_cast<std::uint32_t>(random() % 2);
    for (auto& count : counts) count = static_cast<std::uint32_t>(1 + random() % 2);
    Keys const keys{.ids = ids, .tables = tables, .counts = counts};
    std::vector<RowId> rows(ids.size());
    std::vector<float> expected(ids.size() * kDim), out(ids.size() * kDim), gradients(ids.size() * kDim);
    std::vector<KeyStatus> expected_statuses(ids.size()), statuses(ids.size());

    apart->find(keys, rows, expected_statuses);
    apart->gather(keys, rows, expected);
    fused->read(keys, out, statuses);
    EXPECT_EQ(out, expected);
    EXPECT_EQ(statuses, expected_statuses);

    apart->find_or_insert(keys, rows, {});
    apart->gather(keys, rows, expected);
    fused->read_or_insert(keys, out);
    EXPECT_EQ(out, expected);

    for (auto& value : gradients) value = static_cast<float>(random() % 100) / 100;
    apart->find(keys, rows, {});
    apart->update(keys, rows, gradients, {.learning_rate = 0.1, .number = step});
    fused->update_keys(keys, gradients, {.learning_rate = 0.1, .number = step});
  }
  auto const all = apart->list(0, 4096), other = fused->list(0, 4096);
  ASSERT_EQ(other.ids, all.ids);
  auto const records = apart->export_records(all.keys()), others = fused->export_records(all.keys());
  EXPECT_EQ(others.embeddings, records.embeddings);
  EXPECT_EQ(others.counts, records.counts);
  EXPECT_EQ(others.steps, records.steps);
  EXPECT_EQ(fused->list_pending(0, 4096).ids, apart->list_pending(0, 4096).ids);
  auto const counts = apart->statistics(), other_counts = fused->statistics();
  EXPECT_EQ(other_counts.inserted, counts.inserted);
  EXPECT_EQ(other_counts.refused, counts.refused);
  EXPECT_EQ(other_counts.evicted, counts.evicted);
  EXPECT_EQ(other_counts.expired, counts.expired);
  EXPECT_EQ(other_counts.promoted, counts.promoted);
  EXPECT_EQ(other_counts.dropped_gradients, counts.dropped_gradients);
}

INSTANTIATE_TEST_SUITE_P(Options, ConcurrentTableTest,
                         testing::Values("plain", "limit", "lru", "admission", "cold", "expiry"),
                         [](auto const& tested) { return tested.param; });

/// Runs `work(number)` on some threads at the same time.
template <class Work>
void on_threads(int count, Work work) {
  std::vector<std::jthread> threads;
  for (int number = 0; number < count; ++number) threads.emplace_back([&work, number] { work(number); });
}

// All columns of a row are equal: they begin so, and gradients keep them so. A reader of half an update would see two
// values.
TEST(ConcurrentTable, ReadersSeeWholeRowsBesideUpdatesInsertionsAndSteps) {
  constexpr int kThreads = 4, kCalls = 60;
  constexpr std::size_t kIds = 3000, kKeys = 2500;
  auto options = options_of(2);
  options.initializer = Initializer::constant(0.5F);
  auto const table = make_concurrent_table(options);
  std::atomic<std::uint64_t> num_torn = 0;
  std::vector<std::atomic<int>> updates(kIds);
  on_threads(kThreads, [&](int number) {
    std::mt19937_64 random(static_cast<std::uint64_t>(number));
    std::vector<std::uint64_t> ids(kIds);
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> values(kKeys * kDim);
    for (int call = 0; call < kCalls; ++call) {
      std::ranges::shuffle(ids, random);
      Keys const keys{.ids = std::span(ids).first(kKeys)};
      if (call % 3 == 0) {
        table->read(keys, values, {});
      } else {
        table->read_or_insert(keys, values);
      }
      for (std::size_t i = 0; i < kKeys; ++i) {
        auto const row = std::span(values).subspan(i * kDim, kDim);
        num_torn += std::ranges::any_of(row, [&](float each) { return each != row[0]; }) ? 1 : 0;
      }
      if (call % 3 == 0) continue;
      std::ranges::fill(values, -1.0F);
      table->update_keys(keys, values, kStep);
      for (auto const id : keys.ids) ++updates[id];
      if (number == 0) table->begin_step(static_cast<std::uint32_t>(call), 0);
      if (number == 1) {
        EXPECT_LE(table->size().rows, kIds);
      }
    }
  });
  EXPECT_EQ(num_torn, 0U);
  std::vector<std::uint64_t> ids(kIds);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> values(kIds * kDim);
  table->read({.ids = ids}, values, {});
  for (std::size_t id = 0; id < kIds; ++id) {
    EXPECT_EQ(values[id * kDim], 0.5F + static_cast<float>(updates[id].load())) << id;
  }
  EXPECT_EQ(table->statistics().inserted, kIds);
}

TEST(ConcurrentTable, InsertionsOfSeveralThreadsKeepTheLimit) {
  for (auto const policy : {EvictionPolicy::kNone, EvictionPolicy::kLeastRecentlyUsed}) {
    constexpr std::size_t kMost = 5000, kKeys = 700;
    auto options = options_of(1);
    options.max_rows = kMost;
    options.eviction = policy;
    auto const table = make_concurrent_table(options);
    table->begin_step(1, 1);
    std::atomic<std::size_t> most = 0;
    on_threads(4, [&](int number) {
      std::vector<float> values(kKeys * kDim);
      std::vector<std::uint64_t> ids(kKeys);
      for (std::uint64_t call = 0; call < 12; ++call) {
        std::iota(ids.begin(), ids.end(), static_cast<std::uint64_t>(number) * 100'000 + call * kKeys);
        table->read_or_insert({.ids = ids}, values);
        most = std::max(most.load(), table->size().rows);
      }
    });
    EXPECT_LE(most, kMost);
    EXPECT_EQ(table->size().rows, kMost) << "all rows were asked for";
    EXPECT_GT(table->statistics().refused, 0U) << "rows of this step stay";
  }
}

TEST(ConcurrentTable, GrowsBeyondReservedRowsWhileThreadsInsert) {
  constexpr std::size_t kKeys = 20'000;
  auto options = options_of(1);
  options.dim = 1024;  // A chunk of memory has few rows.
  options.initializer = Initializer::constant(1);
  auto const table = make_concurrent_table(options);
  on_threads(3, [&](int number) {
    std::vector<float> values(1000 * options.dim);
    std::vector<std::uint64_t> ids(1000);
    for (std::uint64_t first = 0; first < kKeys; first += ids.size()) {
      std::iota(ids.begin(), ids.end(), static_cast<std::uint64_t>(number) * kKeys + first);
      std::ranges::fill(values, 0.0F);
      table->read_or_insert({.ids = ids}, values);
      EXPECT_TRUE(std::ranges::all_of(values, [](float each) { return each == 1; }));
    }
  });
  EXPECT_EQ(table->size().rows, 3 * kKeys);
  EXPECT_EQ(table->statistics().refused, 0U);
}

TEST(ConcurrentTable, WrongSizesAreRefused) {
  auto const table = make_concurrent_table(options_of(1));
  std::vector<std::uint64_t> const ids{1, 2};
  std::vector<float> values(kDim);
  EXPECT_THROW(table->read({.ids = ids}, values, {}), base::UsageError);
  EXPECT_THROW(table->read_or_insert({.ids = ids}, values), base::UsageError);
  EXPECT_THROW(table->update_keys({.ids = ids}, values, kStep), base::UsageError);
}

}  // namespace
}  // namespace headway::embedding
