// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/deduplication/striped_batch.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "stripe_map.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// The deduplicator behind make_cpu_deduplicator(). The algorithm is explained in cpu_deduplicator.cpp.
class CpuDeduplicator final : public Deduplicator {
 public:
  explicit CpuDeduplicator(std::shared_ptr<base::ThreadPool> thread_pool) : thread_pool_(std::move(thread_pool)) {}

  [[nodiscard]] UniqueKeys deduplicate(Keys const& keys) override;
  void expand(UniqueKeys const& unique, Bags const& bags, std::span<float const> values, std::span<float> out) override;
  void reduce(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
              std::span<float> sums) override;

 private:
  /// Finds for each key of a stripe its first occurrence in the batch, and counts the occurrences.
  void find_firsts(Keys const& keys, std::size_t stripe);
  /// Gives first occurrences their unique index, in the order of the batch.
  [[nodiscard]] UniqueKeys index_firsts(Keys const& keys);
  /// Fills inverse indices, CSR indices and counts for the keys of a stripe.
  void fill_csr(UniqueKeys& unique, Keys const& keys, std::size_t stripe);

  std::mutex mutex_;  ///< Held for a whole call; guards the scratch memory below.
  std::shared_ptr<base::ThreadPool> thread_pool_;
  StripeMap stripe_map_;
  StripedBatch batch_;
  std::vector<std::uint32_t> first_of_;  ///< (keys) Position of the first occurrence of the key.
  /// (keys) At a first occurrence: how often the key occurs, later its unique index. Elsewhere 0.
  std::vector<std::uint32_t> unique_indices_;
  std::vector<std::size_t> range_begins_;  ///< (ranges + 1) Unique index of the first new key of each range.
  /// Hash tables: position of a first occurrence plus 1; 0 is free.
  std::array<std::vector<std::uint32_t>, StripeMap::kCount> slots_;
};

}  // namespace headway::embedding
