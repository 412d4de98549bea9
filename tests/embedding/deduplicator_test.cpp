// SPDX-License-Identifier: Apache-2.0

// Deduplicator on the CPU: unique keys, their lookup counts, and sums over their members (positions in the batch).
//
// A key is an id with its table's number. inverse_indices has the unique key of each position; csr_indices and
// csr_offsets map back. expand() gives each bag the weighted sum of its keys' values; reduce() gives each unique key
// the weighted sum of the values of the bags that hold it.

#include "headway/embedding/deduplicator.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

class DeduplicatorTest : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Deduplicator> deduplicator_ = make_cpu_deduplicator(std::make_shared<base::ThreadPool>(GetParam()));
};

struct Batch {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables}; }
};

Batch random_batch(std::mt19937_64& random, std::size_t size, std::uint64_t num_ids) {
  Batch batch;
  for (std::size_t i = 0; i < size; ++i) {
    // A skewed draw: few ids make up most of the batch.
    batch.ids.push_back(random() % (random() % num_ids + 1) * 0x9e3779b97f4a7c15);
    batch.tables.push_back(static_cast<std::uint32_t>(random() % 3));
  }
  return batch;
}

TEST_P(DeduplicatorTest, UniqueKeysComeInTheOrderOfTheBatchWithTheirCounts) {
  std::mt19937_64 random(3);
  for (std::size_t const size : {0, 1, 2, 1'000, 50'000, 10}) {  // At last a small batch after a large one.
    auto const batch = random_batch(random, size, size / 3 + 1);
    auto const unique = deduplicator_->deduplicate(batch.keys());
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> index_of;  // By (table, id).
    std::vector<std::uint32_t> counts;
    ASSERT_EQ(unique.inverse_indices.size(), size);
    for (std::size_t i = 0; i < size; ++i) {
      auto const [at, is_first] = index_of.try_emplace({batch.tables[i], batch.ids[i]}, index_of.size());
      if (is_first) {
        counts.push_back(0);
        ASSERT_LT(at->second, unique.size());
        ASSERT_EQ(unique.keys()[at->second], batch.keys()[i]);
      }
      ++counts[at->second];
      ASSERT_EQ(unique.inverse_indices[i], at->second) << i;
    }
    EXPECT_EQ(unique.counts, counts);
    EXPECT_EQ(unique.size(), counts.size());
  }
}

TEST_P(DeduplicatorTest, SumsAreTakenInTheOrderOfTheBatch) {
  constexpr std::size_t kSize = 20'000, kDim = 3;
  std::mt19937_64 random(4);
  auto const batch = random_batch(random, kSize, 500);
  auto const unique = deduplicator_->deduplicate(batch.keys());
  std::vector<float> values(kSize * kDim), expected(unique.size() * kDim, 0), sums(unique.size() * kDim, -1);
  for (auto& value : values) value = std::normal_distribution<float>(0, 1)(random);  // Sums depend on the order.
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t column = 0; column < kDim; ++column) {
      expected[unique.inverse_indices[i] * kDim + column] += values[i * kDim + column];
    }
  }
  deduplicator_->reduce(unique, {}, values, sums);
  EXPECT_EQ(sums, expected);

  std::vector<float> out(kSize * kDim);
  deduplicator_->expand(unique, {}, sums, out);
  for (std::size_t i = 0; i < kSize; ++i) {
    ASSERT_TRUE(std::ranges::equal(std::span(out).subspan(i * kDim, kDim),
                                   std::span(expected).subspan(unique.inverse_indices[i] * kDim, kDim)));
  }
}

TEST_P(DeduplicatorTest, OneTableForAllStaysOne) {
  std::vector<std::uint64_t> const ids{7, 9, 7, 7};
  auto const unique = deduplicator_->deduplicate({.ids = ids, .table = 5});
  EXPECT_EQ(unique.ids, (std::vector<std::uint64_t>{7, 9}));
  EXPECT_TRUE(unique.tables.empty());
  EXPECT_EQ(unique.keys()[1], (Key{.id = 9, .table = 5}));
  EXPECT_EQ(unique.counts, (std::vector<std::uint32_t>{3, 1}));
}

TEST_P(DeduplicatorTest, CountsOfKeysAddUpAsFarAsTheyFit) {
  std::vector<std::uint64_t> const ids{7, 9, 7, 8, 8};
  std::vector<std::uint32_t> const counts{2, 3, 4, 0xffffffff, 9};
  auto const unique = deduplicator_->deduplicate({.ids = ids, .counts = counts});
  EXPECT_EQ(unique.counts, (std::vector<std::uint32_t>{6, 3, 0xffffffff}));
  EXPECT_EQ(unique.csr_indices, (std::vector<std::uint32_t>{0, 2, 1, 3, 4}));
}

TEST_P(DeduplicatorTest, BagsGetTheWeightedSumsOfTheirKeysAndGiveThemBack) {
  std::vector<std::uint64_t> const ids{7, 9, 7, 8};
  std::vector<std::int64_t> const offsets{0, 0, 3, 4};
  std::vector<float> const weights{1, 2, 3, 0.5}, values{10, 1, 20, 2, 40, 4};
  auto const unique = deduplicator_->deduplicate({.ids = ids});
  std::vector<float> out(6, -1), sums(6, -1);
  deduplicator_->expand(unique, {.offsets = offsets}, values, out);
  EXPECT_EQ(out, (std::vector<float>{0, 0, 40, 4, 40, 4}));
  deduplicator_->expand(unique, {.offsets = offsets, .weights = weights}, values, out);
  EXPECT_EQ(out, (std::vector<float>{0, 0, 80, 8, 20, 2}));
  deduplicator_->reduce(unique, {.offsets = offsets, .weights = weights}, std::vector<float>{5, 5, 1, 2, 4, 8}, sums);
  EXPECT_EQ(sums, (std::vector<float>{4, 8, 2, 4, 2, 4}));
}

TEST_P(DeduplicatorTest, KeysMayBeTakenAsUnique) {
  std::vector<std::uint64_t> const ids{7, 9, 7};
  auto const unique = from_unique({.ids = ids, .table = 3});
  EXPECT_EQ(unique.ids, ids);
  EXPECT_EQ(unique.counts, (std::vector<std::uint32_t>{1, 1, 1}));
  std::vector<float> const values{1, 2, 3};
  std::vector<float> out(3), sums(3);
  deduplicator_->expand(unique, {}, values, out);
  EXPECT_EQ(out, values);
  deduplicator_->reduce(unique, {}, values, sums);
  EXPECT_EQ(sums, values);
}

TEST_P(DeduplicatorTest, UniqueKeysMayBeBroughtIntoAnotherOrder) {
  std::vector<std::uint64_t> const ids{7, 9, 7, 8, 9};
  std::vector<std::uint32_t> const tables{1, 2, 1, 3, 2}, counts{1, 2, 3, 4, 5};
  auto const unique = reorder(deduplicator_->deduplicate({.ids = ids, .tables = tables, .counts = counts}),
                              std::vector<std::uint32_t>{2, 0, 1});
  EXPECT_EQ(unique.ids, (std::vector<std::uint64_t>{8, 7, 9}));
  EXPECT_EQ(unique.tables, (std::vector<std::uint32_t>{3, 1, 2}));
  EXPECT_EQ(unique.counts, (std::vector<std::uint32_t>{4, 4, 7}));
  EXPECT_EQ(unique.inverse_indices, (std::vector<std::uint32_t>{1, 2, 1, 0, 2}));
  EXPECT_EQ(unique.csr_indices, (std::vector<std::uint32_t>{3, 0, 2, 1, 4}));
  EXPECT_EQ(unique.csr_offsets, (std::vector<std::uint32_t>{0, 1, 3, 5}));

  std::vector<std::uint64_t> const of_one_table{7, 9};
  auto const swapped = reorder(from_unique({.ids = of_one_table, .table = 5}), std::vector<std::uint32_t>{1, 0});
  EXPECT_TRUE(swapped.tables.empty());
  EXPECT_EQ(swapped.keys()[0], (Key{.id = 9, .table = 5}));
  EXPECT_EQ(reorder(deduplicator_->deduplicate({}), {}).size(), 0U);
}

TEST_P(DeduplicatorTest, SumsAndVectorsOfAnotherOrderAreTheSameInThatOrder) {
  constexpr std::size_t kSize = 20'000, kDim = 3;
  std::mt19937_64 random(5);
  auto const batch = random_batch(random, kSize, 500);
  auto const unique = deduplicator_->deduplicate(batch.keys());
  std::vector<std::uint32_t> order(unique.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  auto const reordered = reorder(unique, order);
  std::vector<float> values(kSize * kDim), sums(unique.size() * kDim), of_reordered(sums.size());
  for (auto& value : values) value = std::normal_distribution<float>(0, 1)(random);  // Sums depend on the order.
  deduplicator_->reduce(unique, {}, values, sums);
  deduplicator_->reduce(reordered, {}, values, of_reordered);
  for (std::size_t i = 0; i < order.size(); ++i) {
    ASSERT_TRUE(std::ranges::equal(std::span(of_reordered).subspan(i * kDim, kDim),
                                   std::span(sums).subspan(order[i] * kDim, kDim)));
  }
  std::vector<float> out(values.size()), out_of_reordered(values.size());
  deduplicator_->expand(unique, {}, sums, out);
  deduplicator_->expand(reordered, {}, of_reordered, out_of_reordered);
  EXPECT_EQ(out_of_reordered, out);
}

TEST_P(DeduplicatorTest, AnOrderHasEachUniqueKeyOnce) {
  std::vector<std::uint64_t> const ids{7, 9, 7};
  auto const unique = deduplicator_->deduplicate({.ids = ids});
  for (auto const& order : std::vector<std::vector<std::uint32_t>>{{0}, {0, 1, 2}, {0, 0}, {1, 2}}) {
    EXPECT_THROW(static_cast<void>(reorder(unique, order)), base::UsageError);
  }
}

TEST_P(DeduplicatorTest, SizesThatDoNotAgreeAreRefused) {
  std::vector<std::uint64_t> const ids{7, 9, 7};
  std::vector<std::uint32_t> const ones{1};
  EXPECT_THROW(static_cast<void>(deduplicator_->deduplicate({.ids = ids, .tables = ones})), base::UsageError);
  EXPECT_THROW(static_cast<void>(deduplicator_->deduplicate({.ids = ids, .counts = ones})), base::UsageError);
  auto const unique = deduplicator_->deduplicate({.ids = ids});
  std::vector<float> values(6), sums(4);
  deduplicator_->reduce(unique, {}, values, sums);
  EXPECT_THROW(deduplicator_->reduce(unique, {}, std::span(values).first(5), sums), base::UsageError);
  EXPECT_THROW(deduplicator_->reduce(unique, {}, values, std::span(sums).first(3)), base::UsageError);
  EXPECT_THROW(deduplicator_->expand(unique, {}, std::span(sums).first(2), values), base::UsageError);
  for (auto const& offsets : std::vector<std::vector<std::int64_t>>{{0, 2}, {1, 3}, {0, 2, 1, 3}, {3}}) {
    EXPECT_THROW(deduplicator_->expand(unique, {.offsets = offsets}, sums, values), base::UsageError);
  }
  EXPECT_THROW(deduplicator_->expand(unique, {.weights = sums}, sums, values), base::UsageError);
  EXPECT_THROW(static_cast<void>(std::make_shared<base::ThreadPool>(0)), base::UsageError);
}

INSTANTIATE_TEST_SUITE_P(Threads, DeduplicatorTest, testing::Values(1, 3));

}  // namespace
}  // namespace headway::embedding
