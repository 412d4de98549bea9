// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_array.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// The ids of one operation, without duplicates. The device copies are valid until the next batch is made.
struct IdBatch {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint8_t> is_new;                 ///< (ids) 1: no table has seen the id.
  std::span<std::uint64_t const> device_ids{};      ///< (ids)
  std::span<std::uint64_t const> device_new_ids{};  ///< The new ids alone.
};

/// Makes ids that look random, and batches of known ids (in the tables) and new ids.
class IdBatches {
 public:
  /// @param batch most ids of a batch, or of a call of on_device()
  IdBatches(std::size_t batch, std::uint64_t seed);

  /// Makes ids that were never made before.
  std::vector<std::uint64_t> make_new(std::size_t count);
  /// Sets the ids that tables have.
  void set_known(std::vector<std::uint64_t> ids);
  /// Adds ids to those that tables have.
  void add_known(std::span<std::uint64_t const> ids);
  [[nodiscard]] std::span<std::uint64_t const> known() const { return known_; }

  /// Makes a batch of `num_known` known and `num_new` new ids, shuffled. Batches run through the known ids in random
  /// order, and shuffle them again when too few are left.
  IdBatch const& next(std::size_t num_known, std::size_t num_new);
  /// Copies ids to the device. The copy is valid until the next call of this function.
  std::span<std::uint64_t const> on_device(std::span<std::uint64_t const> ids) const { return other_ids_.set(ids); }

 private:
  std::mt19937_64 random_;
  std::uint64_t num_made_;            ///< Counter behind the ids. Starts at a random number, which the seed decides.
  std::vector<std::uint64_t> known_;  ///< Shuffled.
  std::size_t next_known_ = 0;        ///< Known ids before this index were used since the last shuffle.
  IdBatch batch_{};
  DeviceArray<std::uint64_t> ids_, new_ids_, other_ids_;
};

}  // namespace headway::benchmarks
