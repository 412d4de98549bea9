// SPDX-License-Identifier: Apache-2.0

// Rules of tables that do not depend on the device: limits of options, order of eviction, expiry, and sweeps. The CPU
// and the GPU table include them, so that both remove the same rows in the same step.
//
// A step is a number that grows with training; begin_step() starts it. A row is in use while a backward pass may need
// it: it was looked up in step oldest_in_use or later. A pending key was looked up and waits for a row, which it gets
// after TableOptions::min_count lookups. A virtual bucket is one of kNumVirtualBuckets ranges of hashes; ranks and
// checkpoints divide the keys by these buckets (routing.hpp).

#pragma once

#include "headway/embedding/table.hpp"
#include "headway/kernels/host_device.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Returns `options` with nested limits: max_rows is at most kMostTableRows, high_water at most max_rows, and low_water
/// at most high_water.
/// @throws base::UsageError if an option is out of its range
[[nodiscard]] TableOptions checked(TableOptions options);

/// @throws base::UsageError unless [first_bucket, end_bucket) is a range of virtual buckets
void expect_buckets(std::uint32_t first_bucket, std::uint32_t end_bucket);

/// Checks that `step`, with rows in use since `oldest_in_use`, may follow step `before`.
/// @throws base::UsageError unless before <= step and oldest_in_use <= step
void expect_step(std::uint32_t before, std::uint32_t step, std::uint32_t oldest_in_use);

/// Pending keys that remain after some were forgotten: three quarters of `max_pending`, so that a table at its limit
/// need not scan in every step.
[[nodiscard]] constexpr std::size_t pending_low_water(std::size_t max_pending) { return max_pending - max_pending / 4; }

/// Pending keys of equal counts are forgotten in the order of `hash ^ pending_order(step)`, a different order each
/// step. In a fixed order keys with high hashes would stay for ever, and keys with low ones would never wait long
/// enough.
[[nodiscard]] constexpr std::uint64_t pending_order(std::uint32_t step) {
  constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  return step * kGoldenRatio;
}

/// Number of rows that an eviction leaves of `num_rows`: goes down to `low`, but by at most `batch` rows, unless more
/// must go to reach `allowed`. With allowed = 95, low = 85 and batch = 4, it leaves 92 of 96, and 95 of 100. Requires
/// low <= allowed. The caller evicts only if num_rows > allowed.
[[nodiscard]] HEADWAY_HOST_DEVICE constexpr std::size_t rows_left(std::size_t num_rows, std::size_t allowed,
                                                                  std::size_t low, std::size_t batch) {
  std::size_t const by_batch = num_rows - (num_rows < batch ? num_rows : batch);
  std::size_t const left = by_batch < allowed ? by_batch : allowed;
  return left < low ? low : left;
}

/// Policy by which evict_beyond_limit() removes rows: that of the table, or LFU if the table has none.
[[nodiscard]] constexpr EvictionPolicy policy_of_limit(EvictionPolicy policy) {
  return policy == EvictionPolicy::kNone ? EvictionPolicy::kLeastFrequentlyUsed : policy;
}
/// Value of oldest_in_use with which evict_beyond_limit() treats no row as in use. It goes into the order of eviction
/// directly. begin_step() never takes it, because expect_step() demands oldest_in_use <= step.
inline constexpr std::uint32_t kNoStepInUse = 0xffffffff;

/// Tells whether a row is expired: its last lookup was more than time_to_live steps ago, and before oldest_in_use.
struct Expiry {
  /// Present step. Rows looked up in step oldest_in_use or later are in use.
  std::uint32_t step = 0, oldest_in_use = 0;
  std::uint32_t time_to_live = 0;  ///< 0: rows never expire.

  [[nodiscard]] HEADWAY_HOST_DEVICE bool operator()(std::uint32_t step_of_row) const {
    return time_to_live > 0 && step_of_row < oldest_in_use && step - step_of_row > time_to_live;
  }
};

/// Rows of the least score are evicted first. LRU: step, then count. LFU: count, then step; an expired row has score 0,
/// whatever its count. LRU needs no such rule, as expired rows have the lowest steps.
[[nodiscard]] HEADWAY_HOST_DEVICE inline std::uint64_t eviction_score(EvictionPolicy policy, std::uint32_t step,
                                                                      std::uint32_t count, Expiry const& is_expired) {
  std::uint64_t const step_of_row = step, count_of_row = count;
  if (policy == EvictionPolicy::kLeastRecentlyUsed) return step_of_row << 32 | count_of_row;
  return is_expired(step) ? 0 : count_of_row << 32 | step_of_row;
}

/// Stripes whose expired rows a step removes: one for each step that passed, at most all. The sweep depends on step
/// numbers alone, so a restarted run continues it at the same stripe.
struct Sweep {
  std::size_t first, count;  ///< Stripes (first + i) % num_stripes for i < count.
};
[[nodiscard]] Sweep sweep_of(std::uint32_t before, std::uint32_t step, std::size_t num_stripes);

}  // namespace headway::embedding
