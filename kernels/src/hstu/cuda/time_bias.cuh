#pragma once

#include "hstu/cuda/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Between which times some tokens are.
struct TimeRange {
  SplitTime least, most;
};

/// The first and the last bucket of time differences.
struct BucketRange {
  std::int32_t first, last;
};

/// Of all differences of times in one range from times in another.
[[nodiscard]] __device__ __forceinline__ BucketRange buckets_between(TimeTable const& table, TimeRange const& a,
                                                                     TimeRange const& b) {
  float const least = time_difference(a.least, b.most), most = time_difference(a.most, b.least);
  // A maximum of zeros may be -0, which is in no cell.
  float const apart[] = {fabsf(fmaxf(fmaxf(least, -most), 0.0F)), fabsf(fmaxf(-least, most))};
  std::int32_t buckets[2];
  table.find_buckets(apart, buckets);
  return {buckets[0], buckets[1]};
}

/// Of two neighbouring columns.
struct alignas(16) TimePair {
  SplitTime times[2];
};

/// The times of the columns of a block of scores, in shared memory, and the range of each 8 of them: of these and the
/// rows of a warp all differences often lie in one bucket, so that they are looked up together.
template <int kColumns>
struct TimeColumns {
  static constexpr int kGroups = kColumns / 8;

  TimePair pairs[kColumns / 2];
  alignas(16) TimeRange ranges[kGroups];

  /// By all lanes of a warp, for others after a barrier.
  /// @param first time, of at least `num_times`; columns behind those have the last one
  __device__ __forceinline__ void fill(std::int64_t const* first, std::int32_t num_times, std::int64_t base) {
    constexpr int kPerLane = kColumns / kWarpThreads, kLanes = 8 / kPerLane;
    static_assert(kPerLane == 2 || kPerLane == 4);
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
    long long least = INT64_MAX, most = INT64_MIN;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      std::int32_t const column = lane * kPerLane + i;
      long long const time = __ldg(first + min(column, num_times - 1));
      pairs[column / 2].times[i % 2] = {time, base};
      least = min(least, time);
      most = max(most, time);
    }
    for (int bits = 1; bits < kLanes; bits *= 2) {
      least = min(least, __shfl_xor_sync(kAllLanes, least, bits));
      most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
    }
    if (lane % kLanes == 0) ranges[lane / kLanes] = {{least, base}, {most, base}};
    __syncwarp();
  }
};

/// The times of the two rows of a thread and, in shared memory, the range of those of its warp.
struct RowTimes {
  SplitTime times[2];

  /// By all lanes of a warp; each row's time is that of a token of the sequence.
  __device__ __forceinline__ void fill(std::int64_t const (&rows)[2], std::int64_t base, TimeRange& range) {
    long long least = min(rows[0], rows[1]), most = max(rows[0], rows[1]);
    for (int bits = 4; bits < kWarpThreads; bits *= 2) {
      least = min(least, __shfl_xor_sync(kAllLanes, least, bits));
      most = max(most, __shfl_xor_sync(kAllLanes, most, bits));
    }
    if (threadIdx.x % kWarpThreads == 0) range = {{least, base}, {most, base}};
    __syncwarp();
    times[0] = {rows[0], base};
    times[1] = {rows[1], base};
  }
};

/// The time bias of the rows of a warp and the columns of a block. Groups of 8 columns are alike (all pairs in one
/// bucket, so that they are looked up together), or of two neighbouring buckets, which one comparison tells apart, or
/// of more. What it knows of a group is with the lane of the group's number, so that it takes few registers.
class TimeBias {
 public:
  TimeBias() = default;
  /// By all lanes of a warp.
  template <int kColumns>
  __device__ __forceinline__ TimeBias(TimeTable const& table, TimeRange const& rows,
                                      TimeColumns<kColumns> const& columns) {
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
    BucketRange const buckets = buckets_between(table, rows, columns.ranges[min(lane, columns.kGroups - 1)]);
    bool const is_alike = buckets.first == buckets.last, is_of_two = buckets.last == buckets.first + 1;
    below_ = table.weight(buckets.first);
    above_ = table.weight(buckets.last);
    bound_ = table.bound_above(buckets.first);
    common_ = is_alike ? below_ : 0.0F;
    of_two_ = __ballot_sync(kAllLanes, is_of_two);
    of_more_ = __ballot_sync(kAllLanes, !is_alike && !is_of_two);
  }

  /// That of an alike group, else 0; by all lanes.
  [[nodiscard]] __device__ __forceinline__ float common(int group) const {
    return __shfl_sync(kAllLanes, common_, group);
  }

  /// Adds to the groups that are not alike, by all lanes.
  /// @param column of the thread within a group, and the next
  template <int kValues, int kColumns>
  __device__ __forceinline__ void add_to_mixed(TimeTable const& table, RowTimes const& rows,
                                               TimeColumns<kColumns> const& columns, std::int32_t column,
                                               float (&values)[kValues]) const {
    static_assert(kValues == kColumns / 2);
    if (of_two_ != 0) {
#pragma unroll
      for (int group = 0; group < columns.kGroups; ++group) {
        if ((of_two_ >> group & 1) == 0) continue;
        float const bound = __shfl_sync(kAllLanes, bound_, group), below = __shfl_sync(kAllLanes, below_, group);
        float const above = __shfl_sync(kAllLanes, above_, group);
        TimePair const pair = columns.pairs[4 * group + column / 2];
#pragma unroll
        for (int i = 0; i < 4; ++i) values[4 * group + i] += apart(rows, pair, i) >= bound ? above : below;
      }
    }
    if (of_more_ != 0) {
#pragma unroll
      for (int group = 0; group < columns.kGroups; ++group) {
        if ((of_more_ >> group & 1) == 0) continue;
        TimePair const pair = columns.pairs[4 * group + column / 2];
        std::int32_t buckets[4];
        table.find_buckets({apart(rows, pair, 0), apart(rows, pair, 1), apart(rows, pair, 2), apart(rows, pair, 3)},
                           buckets);
#pragma unroll
        for (int i = 0; i < 4; ++i) values[4 * group + i] += table.weight(buckets[i]);
      }
    }
  }

 private:
  /// @param i of the values of two rows and two columns
  [[nodiscard]] static __device__ __forceinline__ float apart(RowTimes const& rows, TimePair const& pair, int i) {
    return fabsf(time_difference(rows.times[i / 2], pair.times[i % 2]));
  }

  float common_ = 0;                         ///< Of an alike group, else 0.
  float below_ = 0, above_ = 0, bound_ = 0;  ///< Of a group of two buckets.
  unsigned of_two_ = 0, of_more_ = 0;        ///< Groups.
};

}  // namespace headway::kernels
