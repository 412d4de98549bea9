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

/// Pending keys of equal counts go in the order of their hash and this number of the step, which puts them in another
/// order each time. In one order those of high hashes would stay for ever, and others never wait long enough.
[[nodiscard]] constexpr std::uint64_t pending_order(std::uint32_t step) {
  constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  return step * kGoldenRatio;
}

/// Rows that an eviction leaves of `num_rows`: `low` if that takes no more than `batch` rows, but never more than
/// `allowed`. With 95 allowed, low 85 and batch 4 there are 92 left of 96, and 95 of 100.
[[nodiscard]] HEADWAY_HOST_DEVICE constexpr std::size_t rows_left(std::size_t num_rows, std::size_t allowed,
                                                                  std::size_t low, std::size_t batch) {
  std::size_t const by_batch = num_rows - (num_rows < batch ? num_rows : batch);
  std::size_t const left = by_batch < allowed ? by_batch : allowed;
  return left < low ? low : left;
}

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

/// The order in which rows go: those of the least first. By count an expired row is as good as gone, however often it
/// was looked up; by step those are the first anyway.
[[nodiscard]] HEADWAY_HOST_DEVICE inline std::uint64_t eviction_score(EvictionPolicy policy, std::uint32_t step,
                                                                      std::uint32_t count, Expiry const& is_expired) {
  std::uint64_t const step_of_row = step, count_of_row = count;
  if (policy == EvictionPolicy::kLeastRecentlyUsed) return step_of_row << 32 | count_of_row;
  return is_expired(step) ? 0 : count_of_row << 32 | step_of_row;
}

/// Stripes whose expired rows a step removes: one for each step that passed, at most all, so that the sweep depends on
/// steps alone and goes on after a restart where it was.
struct Sweep {
  std::size_t first, count;  ///< Stripes (first + i) % num_stripes for i < count.
};
[[nodiscard]] Sweep sweep_of(std::uint32_t before, std::uint32_t step, std::size_t num_stripes);

}  // namespace headway::embedding
