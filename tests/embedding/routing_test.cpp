// SPDX-License-Identifier: Apache-2.0

// Routing of keys to ranks by virtual buckets: a hash maps a key to a bucket, and a rank owns a range of buckets. Two
// properties are checked with many ids: ranks get nearly equal shares whatever the ids are, and the bucket of a key
// never changes. Checkpoints rely on the second: the expected buckets are written into the test as numbers.

#include "headway/embedding/routing.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::embedding {
namespace {

TEST(Routing, EveryBucketHasTheOwnerInWhoseRangeItIs) {
  for (std::uint32_t const num_ranks : {1U, 2U, 3U, 7U, 64U, 1'000U, kNumVirtualBuckets}) {
    EXPECT_EQ(first_bucket_of(0, num_ranks), 0U);
    EXPECT_EQ(first_bucket_of(num_ranks, num_ranks), kNumVirtualBuckets);
    for (std::uint32_t bucket = 0; bucket < kNumVirtualBuckets; ++bucket) {
      std::uint32_t const owner = owner_of(bucket, num_ranks);
      ASSERT_LE(first_bucket_of(owner, num_ranks), bucket);
      ASSERT_LT(bucket, first_bucket_of(owner + 1, num_ranks));
    }
  }
}

TEST(Routing, RanksHaveNearlyTheSameNumberOfKeysWhateverTheIds) {
  constexpr std::uint32_t kRanks = 24;
  constexpr std::uint64_t kKeys = 240'000;
  // Ids that follow each other, that differ in their upper bits only, and that are multiples of the number of ranks.
  for (std::uint64_t const factor : {1ULL, 1ULL << 40, 24ULL}) {
    std::vector<std::uint64_t> counts(kRanks);
    for (std::uint64_t id = 0; id < kKeys; ++id) {
      ++counts[owner_of(virtual_bucket_of(hash_of({.id = id * factor, .table = 2})), kRanks)];
    }
    for (auto const count : counts) EXPECT_NEAR(static_cast<double>(count), 10'000, 500);
  }
}

TEST(Routing, ARouteHasTheKeysOfEachRankInTheOrderOfTheBatch) {
  constexpr std::uint32_t kRanks = 5;
  std::vector<std::uint64_t> ids(1'000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i * i;
  auto by_owner = route({.ids = ids, .table = 4}, kRanks);
  std::size_t at = 0;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (owner_of(virtual_bucket_of(hash_of({.id = ids[i], .table = 4})), kRanks) != rank) continue;
      ASSERT_EQ(by_owner.order[at++], i);
      --by_owner.counts[rank];
    }
  }
  EXPECT_EQ(by_owner.counts, std::vector<std::int64_t>(kRanks));
  EXPECT_EQ(at, ids.size());
  EXPECT_THROW(static_cast<void>(route({.ids = ids}, 0)), base::UsageError);
}

TEST(Routing, TheBucketOfAKeyIsForEver) {
  EXPECT_EQ(virtual_bucket_of(hash_of({.id = 1, .table = 0})), 1531U);
  EXPECT_EQ(virtual_bucket_of(hash_of({.id = 1, .table = 1})), 8487U);
  EXPECT_EQ(virtual_bucket_of(hash_of({.id = 0xffffffffffffffff, .table = 7})), 9081U);
}

}  // namespace
}  // namespace headway::embedding
