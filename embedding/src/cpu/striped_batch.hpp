#pragma once

#include "cpu/worker_pool.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <cstddef>
#include <vector>

namespace headway::embedding {

/// The keys of a batch by stripe, and in each stripe in the order of the batch, so that a thread can have a whole
/// stripe.
class StripedBatch {
 public:
  /// Lookups that are under way at once: as many lines as a core fetches at a time, and some more.
  static constexpr std::size_t kKeysAhead = 16;

  /// Of `keys`, until the next call.
  void sort(Keys const& keys, StripeMap const& map, WorkerPool& workers);
  [[nodiscard]] std::size_t size() const { return order_.size(); }
  [[nodiscard]] Hash hash(std::size_t i) const { return hashes_[i]; }
  /// The keys of a stripe, by their numbers in the batch.
  [[nodiscard]] std::span<std::size_t const> of_stripe(std::size_t stripe) const {
    return std::span(order_).subspan(begins_[stripe], begins_[stripe + 1] - begins_[stripe]);
  }
  /// Calls `visit(stripe)` for each stripe, on all threads if that is worth it.
  template <class Visit>
  void for_each_stripe(WorkerPool& workers, Visit visit) const {
    if (size() > WorkerPool::kRangeSize) {
      workers.run(StripeMap::kCount, visit);
    } else {
      for (std::size_t stripe = 0; stripe < StripeMap::kCount; ++stripe) visit(stripe);
    }
  }

 private:
  std::vector<Hash> hashes_;        ///< (keys)
  std::vector<std::size_t> order_;  ///< (keys) Their numbers, stripe by stripe.
  std::vector<std::size_t> begins_ = std::vector<std::size_t>(StripeMap::kCount + 1);  ///< (stripes + 1) In `order_`.
  std::vector<std::size_t> ends_;  ///< (ranges, stripes) Scratch: where a range's next key of a stripe goes.
};

}  // namespace headway::embedding
