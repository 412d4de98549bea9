#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>
#include <vector>

namespace headway::embedding {

/// Recorded in checkpoints; another division of keys among ranks gets another number.
inline constexpr std::uint32_t kRoutingVersion = 1;

/// Keys fall into so many virtual buckets, and each bucket belongs to a rank as a whole.
inline constexpr int kVirtualBucketBits = 14;
inline constexpr std::uint32_t kNumVirtualBuckets = std::uint32_t{1} << kVirtualBucketBits;

constexpr std::uint32_t virtual_bucket_of(Hash hash) {
  return static_cast<std::uint32_t>(hash.high >> (64 - kVirtualBucketBits));
}

/// Rank r of n has the buckets from first_bucket_of(r, n) to first_bucket_of(r + 1, n).
constexpr std::uint32_t first_bucket_of(std::uint32_t rank, std::uint32_t num_ranks) {
  return static_cast<std::uint32_t>((std::uint64_t{rank} * kNumVirtualBuckets + num_ranks - 1) / num_ranks);
}

/// The rank that has a bucket. `num_ranks`: at most kNumVirtualBuckets.
constexpr std::uint32_t owner_of(std::uint32_t bucket, std::uint32_t num_ranks) {
  return static_cast<std::uint32_t>(std::uint64_t{bucket} * num_ranks / kNumVirtualBuckets);
}

/// The keys of a batch by the ranks that own them.
struct Route {
  std::vector<std::uint32_t>
      order;  ///< (keys) Their numbers, rank by rank, and for each rank in the order of the batch.
  std::vector<std::int64_t> counts;  ///< (ranks)
};

/// @throws comm::UsageError if there are no ranks or more than buckets, or 2^32 keys or more
[[nodiscard]] Route route(Keys const& keys, std::uint32_t num_ranks);

}  // namespace headway::embedding
