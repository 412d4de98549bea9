// SPDX-License-Identifier: Apache-2.0

// Ownership of keys: the map from keys to ranks. It goes through a fixed number of virtual buckets, as in Redis Cluster
// or Cassandra: a checkpoint records buckets, and any number of ranks can read it back by ranges of them.
//
// Example: 3 ranks. first_bucket_of(1, 3) = ceil(16384 / 3) = 5462, so rank 0 owns buckets 0 to 5461 and rank 1
// begins at 5462. owner_of(5461, 3) = 0 and owner_of(5462, 3) = 1.

#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>
#include <vector>

namespace headway::embedding {

/// Version of the map from keys to ranks. Checkpoints record it; it changes if the map does.
inline constexpr std::uint32_t kRoutingVersion = 1;

/// Keys are hashed into 2^14 virtual buckets. A bucket belongs to one rank.
inline constexpr int kVirtualBucketBits = 14;
inline constexpr std::uint32_t kNumVirtualBuckets = std::uint32_t{1} << kVirtualBucketBits;

/// Virtual bucket of a key: the highest bits of `hash.high`.
constexpr std::uint32_t virtual_bucket_of(Hash hash) {
  return static_cast<std::uint32_t>(hash.high >> (64 - kVirtualBucketBits));
}

/// Rank r of n owns the buckets [first_bucket_of(r, n), first_bucket_of(r + 1, n)).
constexpr std::uint32_t first_bucket_of(std::uint32_t rank, std::uint32_t num_ranks) {
  return static_cast<std::uint32_t>((std::uint64_t{rank} * kNumVirtualBuckets + num_ranks - 1) / num_ranks);
}

/// Rank that owns a bucket. `num_ranks`: at most kNumVirtualBuckets.
constexpr std::uint32_t owner_of(std::uint32_t bucket, std::uint32_t num_ranks) {
  return static_cast<std::uint32_t>(std::uint64_t{bucket} * num_ranks / kNumVirtualBuckets);
}

/// Permutation of a batch by owner rank.
struct Route {
  std::vector<std::uint32_t> order;  ///< (keys) Batch positions, rank by rank, ascending within each rank.
  std::vector<std::int64_t> counts;  ///< (ranks) Keys per rank.
};

/// Groups the keys of a batch by owner rank.
/// @throws base::UsageError if there are no ranks or more than buckets, or 2^32 keys or more
[[nodiscard]] Route route(Keys const& keys, std::uint32_t num_ranks);

}  // namespace headway::embedding
