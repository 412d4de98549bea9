// SPDX-License-Identifier: Apache-2.0

// Time buckets of a block as runs; time_runs.hpp has the idea.

#include "hstu/cpu/time_runs.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels::hstu {

TimeRuns::TimeRuns(HstuBias const& bias)
    : bias_(bias),
      ends_(bias.has_time() ? kBlockSize * kBlockSize : 0),
      buckets_(bias.has_time() ? kBlockSize * kBlockSize : 0) {}

void TimeRuns::find(Sequence const& sequence, TokenRange queries, TokenRange keys) {
  query_times_ = bias_.query_times + sequence.first_query + queries.begin;
  num_queries_ = queries.size;
  do_queries_ascend_ = std::is_sorted(query_times_, query_times_ + num_queries_);
  std::int64_t const* const key_times = bias_.key_times + sequence.first_key + keys.begin;
  for (std::int64_t row = 0; row < keys.size; ++row) find_row(key_times[row], row);
}

void TimeRuns::find_row(std::int64_t key_time, std::int64_t row) {
  std::int32_t* const ends = ends_.data() + row * kBlockSize;
  std::int32_t* const buckets = buckets_.data() + row * kBlockSize;
  // Buckets change little from key to key, so the row before gives first guesses. The first row has no row before; it
  // reads its own old content, and any guess is valid.
  std::int64_t const before = row == 0 ? 0 : -kBlockSize;
  std::int64_t bucket = buckets[before], run = 0;
  for (std::int64_t begin = 0; begin < num_queries_; ++run) {
    bucket = bucket_of(Distance{key_time}(query_times_[begin]), bucket);
    begin = end_of_run(begin, bucket, key_time, ends[before + run]);
    ends[run] = static_cast<std::int32_t>(begin);
    buckets[run] = static_cast<std::int32_t>(bucket);
  }
}

// The subtraction wraps in unsigned 64-bit numbers, which gives the exact distance even between the smallest and the
// largest time, where a signed one would overflow.
float TimeRuns::Distance::operator()(std::int64_t query_time) const {
  auto const key = static_cast<std::uint64_t>(key_time), query = static_cast<std::uint64_t>(query_time);
  return static_cast<float>(query_time >= key_time ? query - key : key - query);
}

bool TimeRuns::is_in(std::int64_t bucket, float distance) const {
  return (bucket == 0 || bias_.time_bounds[bucket - 1] <= distance) &&
         (bucket == bias_.num_time_bounds || distance < bias_.time_bounds[bucket]);
}

std::int64_t TimeRuns::bucket_of(float distance, std::int64_t near_by) const {
  for (std::int64_t bucket = near_by; bucket <= std::min(near_by + 1, bias_.num_time_bounds); ++bucket)
    if (is_in(bucket, distance)) return bucket;
  float const* const bounds = bias_.time_bounds;
  return std::upper_bound(bounds, bounds + bias_.num_time_bounds, distance) - bounds;
}

std::int64_t TimeRuns::end_of_run(std::int64_t begin, std::int64_t bucket, std::int64_t key_time,
                                  std::int64_t near_by) const {
  auto const goes_on = [&](std::int64_t query) { return is_in(bucket, Distance{key_time}(query_times_[query])); };
  // For queries behind the key in time, distances ascend, so the end of the run in the row before is a good guess.
  bool const does_distance_ascend = do_queries_ascend_ && query_times_[begin] >= key_time;
  std::int64_t end = does_distance_ascend ? std::clamp(near_by, begin + 1, num_queries_) : begin + 1;
  while (end > begin + 1 && !goes_on(end - 1)) --end;
  while (end < num_queries_ && goes_on(end)) ++end;
  return end;
}

}  // namespace headway::kernels::hstu
