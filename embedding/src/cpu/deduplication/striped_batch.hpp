// SPDX-License-Identifier: Apache-2.0

// Stable counting sort of a batch by stripe (one of 64 classes of key hashes, see stripe_map.hpp), in parallel.
//
// Idea: three passes. (1) Each range of the batch (ThreadPool::kRangeSize keys) hashes its keys and counts them by
// stripe. (2) An exclusive prefix sum over (stripe, range) turns each count into the position of the range's first key
// of that stripe in `order_`. (3) Each range writes the batch positions of its keys there.
//
// Example: keys 0 to 3 of stripes 0 1 1 0, in ranges {0, 1} and {2, 3}. Each range has one key of each stripe.
//   In order_, stripe 0 begins at 0 for range 0 and at 1 for range 1, and stripe 1 at 2 and at 3.
//   order_ = 0 3 1 2, stripe_offsets_ = 0 2 4 for these two stripes.
//
// Invariants: the sort is stable, so order_ does not depend on the number of threads.
//   All keys with one id and table are in one stripe.
// Complexity: O(keys + stripes * ranges), two passes over the keys.

#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <cstddef>
#include <vector>

namespace headway::embedding {

/// The keys of a batch sorted by stripe; within a stripe in the order of the batch.
class StripedBatch {
 public:
  /// Prefetch distance in keys: slightly more than the number of lines that a core fetches at a time.
  static constexpr std::size_t kKeysAhead = 16;

  /// Sorts `keys`. The result is valid until the next call.
  void sort(Keys const& keys, StripeMap const& map, base::ThreadPool& thread_pool);
  [[nodiscard]] std::size_t size() const { return order_.size(); }
  [[nodiscard]] Hash hash(std::size_t i) const { return hashes_[i]; }
  /// Positions in the batch of the keys of a stripe, ascending.
  [[nodiscard]] std::span<std::size_t const> of_stripe(std::size_t stripe) const {
    return of_stripes(stripe, stripe + 1);
  }
  /// The same for stripes [first, end), one stripe after the other.
  [[nodiscard]] std::span<std::size_t const> of_stripes(std::size_t first, std::size_t end) const {
    return std::span(order_).subspan(stripe_offsets_[first], stripe_offsets_[end] - stripe_offsets_[first]);
  }
  /// Number of keys in stripes up to this one.
  [[nodiscard]] std::size_t end_of(std::size_t stripe) const { return stripe_offsets_[stripe + 1]; }
  /// Calls `visit(stripe)` for each stripe; on all threads if the batch has more than ThreadPool::kRangeSize keys.
  template <class Visit>
  void for_each_stripe(base::ThreadPool& thread_pool, Visit visit) const {
    if (size() > base::ThreadPool::kRangeSize) {
      thread_pool.run(StripeMap::kCount, visit);
    } else {
      for (std::size_t stripe = 0; stripe < StripeMap::kCount; ++stripe) visit(stripe);
    }
  }

 private:
  std::vector<Hash> hashes_;        ///< (keys)
  std::vector<std::size_t> order_;  ///< (keys) Positions in the batch, ordered by stripe.
  /// (stripes + 1) Offset of each stripe in `order_`.
  std::vector<std::size_t> stripe_offsets_ = std::vector<std::size_t>(StripeMap::kCount + 1);
  /// (ranges, stripes) Scratch: index in `order_` of the range's next key of the stripe.
  std::vector<std::size_t> ends_;
};

}  // namespace headway::embedding
