#pragma once

#include "headway/embedding/table.hpp"
#include "headway/kernels/host_device.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Options with limits that fit each other. @throws comm::UsageError for what is out of its range
[[nodiscard]] TableOptions checked(TableOptions options);

/// @throws comm::UsageError unless buckets from `first_bucket` to `end_bucket` are virtual buckets
void expect_buckets(std::uint32_t first_bucket, std::uint32_t end_bucket);

/// @throws comm::UsageError if `step` with rows in use since `oldest_in_use` cannot follow step `before`
void expect_step(std::uint32_t before, std::uint32_t step, std::uint32_t oldest_in_use);

/// Pending keys that are left where there are more than `max_pending`: not all go, nor do a few go in each step.
[[nodiscard]] constexpr std::size_t pending_low_water(std::size_t max_pending) { return max_pending - max_pending / 4; }

/// The order in which rows go that an import left beyond max_rows.
[[nodiscard]] constexpr EvictionPolicy policy_of_limit(EvictionPolicy policy) {
  return policy == EvictionPolicy::kNone ? EvictionPolicy::kLeastFrequentlyUsed : policy;
}
inline constexpr std::uint32_t kNoStepInUse = 0xffffffff;  ///< Later than the step of any row.

/// When rows are expired: a lookup that long ago that time_to_live is over, and no step in use.
struct Expiry {
  std::uint32_t step = 0, oldest_in_use = 0;
  std::uint32_t time_to_live = 0;  ///< 0: rows never expire.

  [[nodiscard]] HEADWAY_HOST_DEVICE bool operator()(std::uint32_t step_of_row) const {
    return time_to_live > 0 && step_of_row < oldest_in_use && step - step_of_row > time_to_live;
  }
};

/// Stripes whose expired rows a step removes: one for each step that passed, at most all, so that the sweep depends on
/// steps alone and goes on after a restart where it was.
struct Sweep {
  std::size_t first, count;  ///< Stripes (first + i) % num_stripes for i < count.
};
[[nodiscard]] Sweep sweep_of(std::uint32_t before, std::uint32_t step, std::size_t num_stripes);

}  // namespace headway::embedding
