#pragma once

#include "hstu/cuda/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Between which times some tokens are.
struct TimeRange {
  SplitTime least, most;

  /// Whether low parts tell differences from others of which that is true.
  [[nodiscard]] __device__ __forceinline__ bool is_near_base() const { return least.high == 0 && most.high == 0; }
};

/// The first and the last bucket of time differences.
struct BucketRange {
  std::int32_t first, last;
};

/// The same where room is short.
struct alignas(4) BucketNumbers {
  std::uint16_t first, last;
};
static_assert(TimeTable::kMostBounds < 1 << 16);

/// Of all differences of times in one range from times in another.
/// @tparam kIsPlain whether it is known that no cell of the table has several bounds
template <bool kIsPlain = false>
[[nodiscard]] __device__ __forceinline__ BucketRange buckets_between(TimeTable const& table, TimeRange const& a,
                                                                     TimeRange const& b) {
  float const least = time_difference(a.least, b.most), most = time_difference(a.most, b.least);
  // A maximum of zeros may be -0, which is in no cell.
  float const apart[] = {fabsf(fmaxf(fmaxf(least, -most), 0.0F)), fabsf(fmaxf(-least, most))};
  std::int32_t buckets[2];
  table.find_buckets<kIsPlain>(apart, buckets);
  return {buckets[0], buckets[1]};
}

/// Of two neighbouring columns. Low parts lie together, as often they are all that is loaded.
struct alignas(16) TimePair {
  float2 low, high;

  [[nodiscard]] __device__ __forceinline__ SplitTime time(int i) const {
    SplitTime result;
    result.high = i == 0 ? high.x : high.y;
    result.low = i == 0 ? low.x : low.y;
    return result;
  }
};

/// The times of the two rows of a thread.
struct RowTimes {
  SplitTime times[2];
};

/// The times of the rows or columns of a block of scores, in shared memory, and the range of each kGroup of them: of
/// some rows and some columns all differences often lie in one bucket or two, so that they are looked up together.
template <int kTokens, int kGroup>
struct BlockTimes {
  static constexpr int kGroups = kTokens / kGroup;

  TimePair pairs[kTokens / 2];
  alignas(16) TimeRange ranges[kGroups];

  /// By all lanes of a warp, for others after a barrier.
  /// @param first time, of at least `num_times`; tokens behind those have the last one
  __device__ __forceinline__ void fill(std::int64_t const* first, std::int32_t num_times, std::int64_t base) {
    constexpr int kLanes = kGroup / 2;  // A lane has two tokens.
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
  /// @param row of a thread, the first of two (FragmentPlace)
  [[nodiscard]] __device__ __forceinline__ RowTimes times_of_rows(std::int32_t row) const {
    return {{time(row), time(row + 8)}};
  }
};

/// The bias of groups of 16 rows and 8 columns in one bucket or in two: all pairs have `below`, and from a bound on
/// `rise` more. Of the groups of 16 rows, in shared memory.
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

  /// Whether one comparison gives the bias of all pairs in these buckets. To a weight that hides a bucket, such as
  /// -1e9, no rise could be added.
  [[nodiscard]] static __device__ __forceinline__ bool holds(TimeTable const& table, BucketRange const& buckets) {
    constexpr float kMostBelow = 1024;
    bool const is_added_to = fabsf(table.weight(buckets.first)) <= kMostBelow;
    return (buckets.last == buckets.first) | ((buckets.last == buckets.first + 1) & is_added_to);  // Without branches.
  }

  /// @param is_left_out whether others add it
  [[nodiscard]] static __device__ __forceinline__ Group group_of(TimeTable const& table, BucketRange const& buckets,
                                                                 bool is_left_out) {
    // All are loaded, so that there are no branches. In the place of the last bucket's bound, which is not used, is
    // another number.
    float const weight = table.weight(buckets.first), last_weight = table.weight(buckets.last);
    float const bound = table.bound_above(buckets.first);
    bool const has_step = !is_left_out & (buckets.last != buckets.first);
    return {is_left_out ? 0 : weight, {has_step ? bound : __uint_as_float(0x7f800000), last_weight - weight}};
  }
  __device__ __forceinline__ void set(std::int32_t group, Group const& bias) {
    below[group] = bias.below;
    steps[group] = bias.step;
  }

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

  /// Of kCount groups from `first` on, of all columns.
  /// @param pairs times of the thread's columns in the first of all groups
  /// @param rows low parts of the times of the thread's rows
  /// @returns bits of the thread's pairs in these groups, of those from the bounds on
  template <int kCount>
  __device__ __forceinline__ std::uint32_t add_rises(float (&scores)[4 * kGroups], int first, TimePair const* pairs,
                                                     float const (&rows)[2]) const {
    std::uint32_t are_above = 0;
#pragma unroll
    for (int group = first; group < first + kCount; ++group) {
      Step const step = steps[group];
      float2 const columns = pairs[4 * group].low;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (fabsf(rows[i / 2] - (i % 2 == 0 ? columns.x : columns.y)) >= step.bound) {
          scores[4 * group + i] += step.rise;
          are_above |= 1u << (4 * (group - first) + i);
        }
      }
    }
    return are_above;
  }
};

/// From scores to factor * score + below, in place.
template <int kGroups>
__device__ __forceinline__ void add_below(float (&scores)[4 * kGroups], float factor, float const (&below)[kGroups]) {
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) scores[i] = fmaf(scores[i], factor, below[i / 4]);
}

/// The time bias of a block of scores, in shared memory. Chunks of kChunk columns are looked up pair by pair where they
/// have groups that StripBias does not hold, or in two buckets with times far from their base; or where their buckets
/// are too far from those of other chunks, so that the others of 16 rows lie in kWindow neighbouring ones.
template <int kRows, int kColumns, int kChunk>
struct BlockTimeBias {
  static constexpr int kWarps = kRows / 16, kGroups = kColumns / 8;
  static constexpr int kChunkGroups = kChunk / 8, kChunks = kColumns / kChunk;
  static constexpr std::int32_t kWindow = 8;
  static_assert(kGroups < kWarpThreads && kWarpThreads % kGroups == 0 && kWarps * kGroups % kWarpThreads == 0);

  /// Of 16 rows.
  struct alignas(16) Strip {
    /// By bits, the first groups of chunks: of those in which each group lies in one bucket, and of those looked up.
    std::uint32_t alike, mixed;
    std::int32_t first_bucket;  ///< Of the chunks that are not looked up.
    std::uint32_t offsets;      ///< The first bucket of each group from there, 4 bits each.

    [[nodiscard]] __device__ __forceinline__ std::uint32_t offset_of(int group) const {
      return offsets >> 4 * group & 15;
    }
  };
  static_assert(kGroups == 8 && kWindow <= 16);

  StripBias<kGroups> bias[kWarps];
  Strip strips[kWarps];
  BucketNumbers buckets[kWarps][kGroups];

  /// @param group the chunk's first
  [[nodiscard]] __device__ __forceinline__ BucketRange buckets_of_chunk(std::int32_t strip, std::int32_t group) const {
    static_assert(kChunkGroups == 2);
    BucketNumbers const first = buckets[strip][group], second = buckets[strip][group + 1];
    return {min(first.first, second.first), max(first.last, second.last)};
  }

  /// By all lanes of a warp, for others after a barrier.
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
      bool const is_told = own.last == own.first || (is_near && StripBias<kGroups>::holds(table, own));
      bool const are_many = is_in_chunk(!is_told);
      std::int32_t const last = max_of_strip(are_many ? -1 : own.last);
      bool const is_mixed = is_in_chunk(are_many || own.first <= last - kWindow);
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
