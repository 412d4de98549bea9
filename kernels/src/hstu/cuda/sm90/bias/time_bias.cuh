// SPDX-License-Identifier: Apache-2.0
#pragma once

// Time bias of a block of scores by groups. Words that the files on time bias share:
//   group  16 rows and 8 columns: 4 accumulator elements of each lane of a warp
//   strip  the 16 rows of one warp, with all groups of a block
//   chunk  16 columns of a strip (backward, BlockTimeBias)
//   part   32 columns of a strip (forward, TimeValues)
//
// Idea: times mostly ascend, so all pairs of a group often lie in one bucket or in two neighbouring ones. The least and
// the greatest difference of the group tell its first and last bucket. Then one comparison per pair replaces a look-up.
//
// Example: see StripBias.
//
// Invariants: a SplitTime is a time minus a base, in two floats (high and low part). If all high parts are 0
// (is_near_base()), low parts alone give exact differences. If not, a group in two buckets is looked up pair by pair.
// Complexity: two look-ups per group, one comparison per pair in groups with two buckets.

#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Least and greatest time of some tokens.
struct TimeRange {
  SplitTime least, most;

  /// Are the high parts of all these times 0? If both ranges are near the base, low parts alone give exact differences.
  [[nodiscard]] __device__ __forceinline__ bool is_near_base() const { return least.high == 0 && most.high == 0; }
};

/// First and last bucket of some time differences.
struct BucketRange {
  std::int32_t first, last;
};

/// BucketRange in 4 bytes.
struct alignas(4) BucketNumbers {
  std::uint16_t first, last;
};
static_assert(TimeTable::kMaxBounds < 1 << 16);

/// Buckets of all differences between times of range a and times of range b.
/// @tparam kIsPlain it is known that no cell of the table holds several bounds
template <bool kIsPlain = false>
[[nodiscard]] __device__ __forceinline__ BucketRange buckets_between(TimeTable const& table, TimeRange const& a,
                                                                     TimeRange const& b) {
  float const least = time_difference(a.least, b.most), most = time_difference(a.most, b.least);
  // The maximum of zeros may be -0, whose bits name no cell; fabsf clears the sign.
  float const apart[] = {fabsf(fmaxf(fmaxf(least, -most), 0.0F)), fabsf(fmaxf(-least, most))};
  std::int32_t buckets[2];
  table.find_buckets<kIsPlain>(apart, buckets);
  return {buckets[0], buckets[1]};
}

/// Times of two neighbouring columns. Low parts lie together, since often only they are loaded.
struct alignas(16) TimePair {
  float2 low, high;

  [[nodiscard]] __device__ __forceinline__ SplitTime time(int i) const {
    SplitTime result;
    result.high = i == 0 ? high.x : high.y;
    result.low = i == 0 ? low.x : low.y;
    return result;
  }
};

/// Times of the two rows of a thread.
struct RowTimes {
  SplitTime times[2];
};

/// Times of the rows or columns of a block of scores in shared memory, and the range of each kGroup of them. Often all
/// differences between some rows and some columns lie in one or two buckets; then one look-up serves them all.
template <int kTokens, int kGroup>
struct BlockTimes {
  static constexpr int kGroups = kTokens / kGroup;

  TimePair pairs[kTokens / 2];
  alignas(16) TimeRange ranges[kGroups];

  /// Loads the times. All lanes of a warp call it; other warps may read after a barrier.
  /// @param first first time of the block
  /// @param num_times times that exist; tokens behind them get the last one
  /// @param base base of SplitTime
  __device__ __forceinline__ void fill(std::int64_t const* first, std::int32_t num_times, std::int64_t base) {
    constexpr int kLanes = kGroup / 2;  // A lane holds two tokens.
    static_assert(kTokens % (2 * kWarpThreads) == 0);
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
#pragma unroll
    for (int pair = lane; pair < kTokens / 2; pair += kWarpThreads) {
      long long const times[] = {__ldg(first + min(2 * pair, num_times - 1)),
                                 __ldg(first + min(2 * pair + 1, num_times - 1))};
      SplitTime const first_time(times[0], base), second_time(times[1], base);
      pairs[pair] = {{first_time.low, second_time.low}, {first_time.high, second_time.high}};
      long long least = min(times[0], times[1]), most = max(times[0], times[1]);
      for (int bits = 1; bits < kLanes; bits *= 2) {
        least = min(least, __shfl_xor_sync(kAllLanes, least, bits));
        most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
      }
      if (lane % kLanes == 0) ranges[pair / kLanes] = {{least, base}, {most, base}};
    }
    __syncwarp();
  }

  [[nodiscard]] __device__ __forceinline__ SplitTime time(std::int32_t token) const {
    return pairs[token / 2].time(token % 2);
  }
  /// @param row first of the thread's two rows (FragmentCoord)
  [[nodiscard]] __device__ __forceinline__ RowTimes times_of_rows(std::int32_t row) const {
    return {{time(row), time(row + 8)}};
  }
};

/// Time bias of one strip of 16 rows, in shared memory, by groups of 8 columns. For a group in one or two buckets: all
/// pairs get `below`, and pairs at or above `bound` get `rise` in addition.
///
/// Example: bucket 3 has weight 0.5, bucket 4 has 0.7, the bound between them is 100. Then below = 0.5, bound = 100,
/// rise = 0.2. For a group in bucket 3 alone, bound is infinite.
template <int kGroups>
struct StripBias {
  struct alignas(8) Step {
    float bound, rise;
  };
  struct Group {
    float below;
    Step step;
  };

  alignas(16) float below[kGroups];
  Step steps[kGroups];

  /// Can one comparison give the bias of all pairs in these buckets? Not if the first weight is huge, such as -1e9 to
  /// hide a bucket: adding a rise to it would lose the second weight.
  [[nodiscard]] static __device__ __forceinline__ bool holds(TimeTable const& table, BucketRange const& buckets) {
    constexpr float kMaxBelow = 1024;
    bool const is_added_to = fabsf(table.weight(buckets.first)) <= kMaxBelow;
    // Bitwise operators avoid branches.
    return (buckets.last == buckets.first) | ((buckets.last == buckets.first + 1) & is_added_to);
  }

  /// @param is_left_out true if other code adds the bias of this group
  [[nodiscard]] static __device__ __forceinline__ Group group_of(TimeTable const& table, BucketRange const& buckets,
                                                                 bool is_left_out) {
    // Everything is loaded unconditionally, which avoids branches. For the last bucket, bound_above() returns a number
    // that is no bound; it is not used then.
    float const weight = table.weight(buckets.first), last_weight = table.weight(buckets.last);
    float const bound = table.bound_above(buckets.first);
    bool const has_step = !is_left_out & (buckets.last != buckets.first);
    return {is_left_out ? 0 : weight, {has_step ? bound : __uint_as_float(0x7f800000), last_weight - weight}};
  }
  __device__ __forceinline__ void set(std::int32_t group, Group const& bias) {
    below[group] = bias.below;
    steps[group] = bias.step;
  }

  /// Loads `below` of all groups with vector loads.
  __device__ __forceinline__ void load_below(float (&to)[kGroups]) const {
#pragma unroll
    for (int i = 0; i < kGroups; i += 4) {
      float4 const four = *reinterpret_cast<float4 const*>(below + i);
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
  }

  /// Adds the rises of kCount groups from `first` on.
  /// @param pairs times of the thread's columns in the first of all groups
  /// @param rows low parts of the times of the thread's rows
  /// @returns a bit for each of the thread's pairs in these groups: 1 if the pair is at or above the bound
  template <int kCount>
  __device__ __forceinline__ std::uint32_t add_rises(float (&s)[4 * kGroups], int first, TimePair const* pairs,
                                                     float const (&rows)[2]) const {
    std::uint32_t are_above = 0;
#pragma unroll
    for (int group = first; group < first + kCount; ++group) {
      Step const step = steps[group];
      float2 const columns = pairs[4 * group].low;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (fabsf(rows[i / 2] - (i % 2 == 0 ? columns.x : columns.y)) >= step.bound) {
          s[4 * group + i] += step.rise;
          are_above |= 1u << (4 * (group - first) + i);
        }
      }
    }
    return are_above;
  }
};

/// Replaces scores by factor * score + below, in place.
template <int kGroups>
__device__ __forceinline__ void add_below(float (&s)[4 * kGroups], float factor, float const (&below)[kGroups]) {
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) s[i] = fmaf(s[i], factor, below[i / 4]);
}

/// Time bias of a block of scores in shared memory (backward pass). Rows are keys, in strips of 16; columns are
/// queries, in chunks of kChunk. A chunk is "mixed" if its pairs must be looked up one by one: a group needs more than
/// StripBias holds, or lies in two buckets with times far from the base, or its buckets are too far from those of the
/// other chunks. All other chunks of a strip lie in kWindow neighbouring buckets.
template <int kRows, int kColumns, int kChunk>
struct BlockTimeBias {
  static constexpr int kWarps = kRows / 16, kGroups = kColumns / 8;
  static constexpr int kChunkGroups = kChunk / 8, kChunks = kColumns / kChunk;
  static constexpr std::int32_t kWindow = 8;
  static_assert(kGroups < kWarpThreads && kWarpThreads % kGroups == 0 && kWarps * kGroups % kWarpThreads == 0);

  /// Summary of one strip of 16 rows. Bit masks mark a chunk by its first group.
  struct alignas(16) Strip {
    /// `alike`: chunks in which each group lies in one bucket. `mixed`: chunks that are looked up pair by pair.
    std::uint32_t alike, mixed;
    std::int32_t first_bucket;  ///< First bucket of the chunks that are not mixed.
    std::uint32_t offsets;      ///< First bucket of each group relative to `first_bucket`, 4 bits each.

    [[nodiscard]] __device__ __forceinline__ std::uint32_t offset_of(int group) const {
      return offsets >> 4 * group & 15;
    }
  };
  static_assert(kGroups == 8 && kWindow <= 16);

  StripBias<kGroups> bias[kWarps];
  Strip strips[kWarps];
  BucketNumbers buckets[kWarps][kGroups];

  /// Buckets of a chunk.
  /// @param group first group of the chunk
  [[nodiscard]] __device__ __forceinline__ BucketRange buckets_of_chunk(std::int32_t strip, std::int32_t group) const {
    static_assert(kChunkGroups == 2);
    BucketNumbers const first = buckets[strip][group], second = buckets[strip][group + 1];
    return {min(first.first, second.first), max(first.last, second.last)};
  }

  /// Classifies all groups and chunks. All lanes of a warp call it, a lane per group; others may read after a barrier.
  __device__ __forceinline__ void fill(TimeTable const& table, BlockTimes<kRows, 16> const& rows,
                                       BlockTimes<kColumns, 8> const& columns) {
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
    std::int32_t const group = lane % kGroups, first_lane = lane - group, chunk_lane = lane - lane % kChunkGroups;
    auto const is_in_chunk = [&](bool is_so) {
      return (__ballot_sync(kAllLanes, is_so) >> chunk_lane & ((1u << kChunkGroups) - 1)) != 0;
    };
    auto const max_of_strip = [&](std::int32_t value) {
#pragma unroll
      for (int bits = 1; bits < kGroups; bits *= 2) value = max(value, __shfl_xor_sync(kAllLanes, value, bits));
      return value;
    };
    auto const first_groups = [&](bool is_so) -> std::uint32_t {
      return __ballot_sync(kAllLanes, is_so && lane == chunk_lane) >> first_lane & ((1u << kGroups) - 1);
    };
#pragma unroll
    for (int first_warp = 0; first_warp < kWarps; first_warp += kWarpThreads / kGroups) {
      std::int32_t const warp = first_warp + lane / kGroups;
      TimeRange const own_rows = rows.ranges[warp], own_columns = columns.ranges[group];
      BucketRange const own = buckets_between(table, own_rows, own_columns);
      bool const is_near = own_rows.is_near_base() && own_columns.is_near_base();
      bool const fits_step = own.last == own.first || (is_near && StripBias<kGroups>::holds(table, own));
      bool const needs_look_up = is_in_chunk(!fits_step);
      std::int32_t const last = max_of_strip(needs_look_up ? -1 : own.last);
      bool const is_mixed = is_in_chunk(needs_look_up || own.first <= last - kWindow);
      std::int32_t const first = -max_of_strip(is_mixed ? -last : -own.first);
      std::uint32_t const alike_groups = first_groups(!is_in_chunk(own.last > own.first));
      std::uint32_t const mixed_groups = first_groups(is_mixed);
      bias[warp].set(group, StripBias<kGroups>::group_of(table, own, is_mixed));
      buckets[warp][group] = {static_cast<std::uint16_t>(own.first), static_cast<std::uint16_t>(own.last)};
      std::uint32_t offsets = static_cast<std::uint32_t>((own.first - first) & 15) << 4 * group;
#pragma unroll
      for (int bits = 1; bits < kGroups; bits *= 2) offsets |= __shfl_xor_sync(kAllLanes, offsets, bits);
      if (group == 0) strips[warp] = {alike_groups, mixed_groups, first, offsets};
    }
    __syncwarp();
  }
};

}  // namespace headway::kernels
