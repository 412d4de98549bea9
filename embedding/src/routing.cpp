// SPDX-License-Identifier: Apache-2.0

// Routing: groups the keys of a batch by the rank that owns them (stores their rows).
//
// Idea: the highest 14 bits of the upper half of a key's hash are its virtual bucket. Rank r of n owns a contiguous
// range of buckets (owner_of). route() is a stable counting sort by owner: count keys for each rank, prefix sum, place.
//
// Example: with 3 ranks, bucket b belongs to rank b * 3 / 16384: rank 0 has buckets 0 to 5,461.
//   Keys 0 to 3 of owners 1, 0, 2, 0 give order = 1 3 0 2 and counts = 2 1 1.
//
// Invariants: a key's bucket never depends on the number of ranks, so checkpoints are read by ranges of buckets.
//   Ranks get equal numbers of buckets, up to one. Within a rank keys keep the order of the batch.
//   Index and routing use different bits of the hash, so the keys of one rank are spread over all stripes (parts) of
//   its key index.
// Complexity: O(keys + ranks). If the mapping of keys to ranks changes, kRoutingVersion must too: checkpoints hold it.

#include "headway/embedding/routing.hpp"

#include "headway/base/status.hpp"

#include <limits>
#include <numeric>
#include <string>

namespace headway::embedding {

Route route(Keys const& keys, std::uint32_t num_ranks) {
  base::expects(num_ranks >= 1 && num_ranks <= kNumVirtualBuckets,
                "keys cannot be divided among " + std::to_string(num_ranks) + " ranks");
  base::expects(keys.size() <= std::numeric_limits<std::uint32_t>::max(), "a batch has less than 2^32 keys");
  std::vector<std::uint32_t> owners(keys.size());
  Route route{.order = std::vector<std::uint32_t>(keys.size()), .counts = std::vector<std::int64_t>(num_ranks)};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    owners[i] = owner_of(virtual_bucket_of(hash_of(keys[i])), num_ranks);
    ++route.counts[owners[i]];
  }
  std::vector<std::int64_t> next(num_ranks);
  std::exclusive_scan(route.counts.begin(), route.counts.end(), next.begin(), std::int64_t{0});
  for (std::size_t i = 0; i < keys.size(); ++i) {
    route.order[static_cast<std::size_t>(next[owners[i]]++)] = static_cast<std::uint32_t>(i);
  }
  return route;
}

}  // namespace headway::embedding
