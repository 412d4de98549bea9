// SPDX-License-Identifier: Apache-2.0

// The three passes of StripedBatch::sort(); striped_batch.hpp explains them.

#include "cpu/deduplication/striped_batch.hpp"

#include <utility>

namespace headway::embedding {

void StripedBatch::sort(Keys const& keys, StripeMap const& map, base::ThreadPool& thread_pool) {
  std::size_t const ranges = base::ThreadPool::num_ranges(keys.size());
  hashes_.resize(keys.size());
  order_.resize(keys.size());
  ends_.assign(ranges * StripeMap::kCount, 0);
  // Pass 1: hash the keys, and count them by range and stripe.
  thread_pool.in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      hashes_[i] = hash_of(keys[i]);
      ++ends_[range * StripeMap::kCount + map.of(hashes_[i])];
    }
  });
  // Pass 2: turn counts into positions in order_, stripe by stripe and range by range.
  std::size_t sum = 0;
  for (std::size_t stripe = 0; stripe < StripeMap::kCount; ++stripe) {
    stripe_offsets_[stripe] = sum;
    for (std::size_t range = 0; range < ranges; ++range) {
      sum += std::exchange(ends_[range * StripeMap::kCount + stripe], sum);
    }
  }
  stripe_offsets_[StripeMap::kCount] = sum;
  // Pass 3: each range writes its keys to its positions, in the order of the batch.
  thread_pool.in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      order_[ends_[range * StripeMap::kCount + map.of(hashes_[i])]++] = i;
    }
  });
}

}  // namespace headway::embedding
