#pragma once

#include "device_array.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// The ids of one operation, all different; also in memory of the device, until the next batch is made.
struct IdBatch {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint8_t> is_new;
  std::span<std::uint64_t const> device_ids{};
  std::span<std::uint64_t const> device_new_ids{};
};

/// Makes ids that look random, and batches of them: some that tables have, and some that no table has seen.
class IdBatches {
 public:
  IdBatches(std::size_t batch, std::uint64_t seed);

  /// Ids that were never made before.
  std::vector<std::uint64_t> make_new(std::size_t count);
  /// From now on tables have `ids` and no other ones.
  void set_known(std::vector<std::uint64_t> ids);
  void add_known(std::span<std::uint64_t const> ids);
  [[nodiscard]] std::span<std::uint64_t const> known() const { return known_; }

  /// `num_known` of the ids that tables have, and `num_new` new ones, in any order. Of the known ones none comes again
  /// before all have come.
  IdBatch const& next(std::size_t num_known, std::size_t num_new);
  /// Copies ids to the device, where they are until this is called again.
  std::span<std::uint64_t const> on_device(std::span<std::uint64_t const> ids) const { return other_ids_.set(ids); }

 private:
  std::mt19937_64 random_;
  std::uint64_t num_made_;
  std::vector<std::uint64_t> known_;  ///< In random order.
  std::size_t next_known_ = 0;
  IdBatch batch_{};
  DeviceArray<std::uint64_t> ids_, new_ids_, other_ids_;
};

}  // namespace headway::benchmarks
