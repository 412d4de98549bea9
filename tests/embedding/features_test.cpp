// SPDX-License-Identifier: Apache-2.0

// Joining the jagged features of a batch: concatenated ids, with the table of each id, bag offsets and weights.
//
// A feature is lists of ids of one table, one list per sample. A pooled list is one bag; without pooling each id is
// one.

#include "headway/embedding/features.hpp"

#include "headway/base/status.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headway::embedding {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Memory for joined features; the constructor joins them.
struct Joined {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;
  std::vector<std::int64_t> offsets;
  std::vector<float> weights;

  explicit Joined(std::vector<Feature> const& features) {
    auto const sizes = sizes_of(features);
    ids.resize(sizes.ids);
    tables.resize(sizes.ids);
    if (sizes.has_bags) offsets.resize(sizes.bags + 1);
    if (sizes.has_weights) weights.resize(sizes.ids);
    join_features(features, {.ids = ids, .tables = tables, .offsets = offsets, .weights = weights});
  }
};

template <class T>
Integers integers_of(std::vector<T> const& values) {
  return {.data = values.data(), .size = values.size(), .are_wide = sizeof(T) == 8};
}

TEST(JoinedFeatures, HaveTheIdsOfAllWithTheirTables) {
  std::vector<std::int64_t> const wide{-1, 5};
  std::vector<std::int32_t> const narrow{-2}, lengths{2, 0}, one{1};
  Joined const joined({{.name = "user", .table = 7, .ids = integers_of(wide), .lengths = integers_of(lengths)},
                       {.name = "none", .table = 8},
                       {.name = "item", .table = 9, .ids = integers_of(narrow), .lengths = integers_of(one)}});
  EXPECT_THAT(joined.ids, ElementsAre(~0ULL, 5, ~0ULL - 1));
  EXPECT_THAT(joined.tables, ElementsAre(7, 7, 9));
  EXPECT_THAT(joined.offsets, ElementsAre()) << "nothing is pooled";
  EXPECT_THAT(joined.weights, ElementsAre());
}

TEST(JoinedFeatures, HaveABagForEachListThatIsPooledAndForEachOtherId) {
  std::vector<std::int64_t> const ids{1, 2, 3}, lengths{2, 0, 1};
  Feature const pooled{
      .name = "pooled", .pooling = Pooling::kSum, .ids = integers_of(ids), .lengths = integers_of(lengths)};
  Feature const plain{.name = "plain", .ids = integers_of(ids), .lengths = integers_of(lengths)};
  EXPECT_THAT(Joined({pooled, plain, pooled}).offsets, ElementsAre(0, 2, 2, 3, 4, 5, 6, 8, 8, 9));
}

TEST(JoinedFeatures, DivideMeansByTheNumberOfTheirIds) {
  std::vector<std::int64_t> const ids{1, 2, 3}, lengths{2, 0, 1};
  std::vector<float> const weights{3, 4, 5};
  Feature mean{.name = "mean", .pooling = Pooling::kMean, .ids = integers_of(ids), .lengths = integers_of(lengths)};
  Feature const sum{.name = "sum", .pooling = Pooling::kSum, .ids = integers_of(ids), .lengths = integers_of(lengths)};
  EXPECT_THAT(Joined({mean, sum}).weights, ElementsAre(0.5F, 0.5F, 1, 1, 1, 1));
  mean.weights = weights;
  EXPECT_THAT(Joined({sum, mean}).weights, ElementsAre(1, 1, 1, 1.5F, 2, 5));
}

TEST(JoinedFeatures, MustFitTheirLengths) {
  std::vector<std::int64_t> const ids{1, 2, 3};
  constexpr std::int64_t kLarge = std::int64_t{1} << 62;  // Four of them are 0 modulo 2^64.
  for (auto const& lengths : std::vector<std::vector<std::int64_t>>{
           {2}, {4}, {4, -1}, {}, {kLarge, kLarge, kLarge, kLarge, 3}, {3, kLarge, kLarge, kLarge, kLarge}}) {
    try {
      Joined({{.name = "user", .ids = integers_of(ids), .lengths = integers_of(lengths)}});
      FAIL() << "it was taken";
    } catch (base::UsageError const& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("feature user: lengths must be from 0 and add up to 3, the number of values"));
    }
  }
}

TEST(JoinedFeatures, AreWrittenOnlyWhereThereIsRoom) {
  std::vector<std::int64_t> const ids{1}, lengths{1};
  std::vector<Feature> const features{{.name = "user", .ids = integers_of(ids), .lengths = integers_of(lengths)}};
  std::vector<std::uint64_t> room(2);
  std::vector<std::uint32_t> tables(1);
  EXPECT_THROW(join_features(features, {.ids = room, .tables = tables}), base::UsageError);
}

}  // namespace
}  // namespace headway::embedding
