#pragma once

#include "cpu/stripe_map.hpp"
#include "cpu/striped_batch.hpp"
#include "cpu/worker_pool.hpp"
#include "headway/embedding/deduplicator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::embedding {

/// Behind make_cpu_deduplicator(): all duplicates of a key are in one stripe, and so with one thread.
class CpuDeduplicator final : public Deduplicator {
 public:
  explicit CpuDeduplicator(int num_threads) : workers_(num_threads) {}

  UniqueKeys const& deduplicate(Keys const& keys) override;
  void add_up(std::span<float const> values, std::span<float> sums) const override;
  void hand_out(std::span<float const> values, std::span<float> out) const override;

 private:
  /// Finds for each key of a stripe the first that is the same, and counts it there.
  void find_firsts(Keys const& keys, std::size_t stripe);
  /// Numbers the first keys in the order of the batch.
  void number_firsts(Keys const& keys);
  /// @returns the values of a key
  [[nodiscard]] std::size_t expect_same_dim(std::size_t of_batch, std::size_t of_unique) const;

  mutable WorkerPool workers_;
  StripeMap stripe_map_;
  StripedBatch batch_;
  UniqueKeys unique_;
  bool is_complete_ = false;               ///< All here is of the same batch.
  std::vector<std::uint32_t> counts_;      ///< (keys) Of one that is the first of its kind; 0 of others.
  std::vector<std::uint32_t> firsts_;      ///< (unique keys) Where each comes first in the batch.
  std::vector<std::size_t> range_begins_;  ///< (ranges + 1) Numbers of unique keys.
  std::array<std::vector<std::uint32_t>, StripeMap::kCount>
      slots_;  ///< Scratch: numbers of first keys plus 1, by hash.
};

}  // namespace headway::embedding
