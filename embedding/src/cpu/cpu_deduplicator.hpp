#pragma once

#include "cpu/striped_batch.hpp"
#include "cpu/worker_pool.hpp"
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

/// Behind make_cpu_deduplicator(): all duplicates of a key are in one stripe, and so with one thread.
class CpuDeduplicator final : public Deduplicator {
 public:
  explicit CpuDeduplicator(std::shared_ptr<WorkerPool> workers) : workers_(std::move(workers)) {}

  [[nodiscard]] UniqueKeys deduplicate(Keys const& keys) override;
  void hand_out(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                std::span<float> out) override;
  void add_up(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
              std::span<float> sums) override;

 private:
  /// Finds for each key of a stripe the first that is the same, and how many are.
  void find_firsts(Keys const& keys, std::size_t stripe);
  /// Numbers the first keys in the order of the batch.
  [[nodiscard]] UniqueKeys number_firsts(Keys const& keys);
  /// Puts the keys of a stripe with their unique ones.
  void fill_members(UniqueKeys& unique, Keys const& keys, std::size_t stripe);

  std::mutex mutex_;  ///< Held by each call.
  std::shared_ptr<WorkerPool> workers_;
  StripeMap stripe_map_;
  StripedBatch batch_;
  std::vector<std::uint32_t> first_of_;    ///< (keys) The first that is the same.
  std::vector<std::uint32_t> numbers_;     ///< (keys) Of one that is the first, how often it comes, then its number.
  std::vector<std::size_t> range_begins_;  ///< (ranges + 1) Numbers of unique keys.
  std::array<std::vector<std::uint32_t>, StripeMap::kCount> slots_;  ///< Numbers of first keys plus 1, by hash.
};

}  // namespace headway::embedding
