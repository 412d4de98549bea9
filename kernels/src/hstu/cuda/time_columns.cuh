#pragma once

#include "hstu/cuda/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Between which times some tokens are.
struct TimeRange {
  SplitTime least, most;
};

/// The times of the columns of a block of scores, in shared memory, and the range of each 8 of them: of these and the
/// rows of a warp all differences often lie in one bucket, so that they are looked up together.
template <int kColumns>
struct TimeColumns {
  static constexpr int kGroups = kColumns / 8;

  alignas(16) SplitTime times[kColumns];
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
      times[column] = {time, base};
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

/// In its place where there is no bias.
struct NoTimes {};

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

/// The time bias of the rows of a warp and the columns of a block.
/// @tparam kIsCrowded whether cells of the table may have several bounds
template <bool kIsCrowded>
class TimeBias {
 public:
  TimeBias() = default;
  /// By all lanes of a warp. Tells which groups of columns have one weight in all rows.
  template <int kColumns>
  __device__ __forceinline__ TimeBias(TimeTable const& table, RowTimes const& rows, TimeRange const& row_range,
                                      TimeColumns<kColumns> const& columns)
      : table_(table), rows_(rows), times_(columns.times) {
    auto const lane = static_cast<std::int32_t>(threadIdx.x % kWarpThreads);
    TimeRange const range = columns.ranges[min(lane, columns.kGroups - 1)];
    float const least = time_difference(row_range.least, range.most);
    float const most = time_difference(row_range.most, range.least);
    std::int32_t const bucket = table_.template bucket_of<kIsCrowded>(fabsf(least));
    bool const is_same = bucket == table_.template bucket_of<kIsCrowded>(fabsf(most));
    weight_ = table_.weight(bucket);
    alike_ = __ballot_sync(kAllLanes, is_same && (least >= 0 || most <= 0));
  }

  /// Adds to a group of columns, by all lanes.
  /// @param column of the thread within the group, and the next
  __device__ __forceinline__ void add(int group, std::int32_t column, float (&bias)[2][2]) const {
    if ((alike_ >> group & 1) != 0) {
      float const weight = __shfl_sync(kAllLanes, weight_, group);
      bias[0][0] += weight;
      bias[0][1] += weight;
      bias[1][0] += weight;
      bias[1][1] += weight;
      return;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      SplitTime const other = times_[8 * group + column + e];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float const apart = fabsf(time_difference(rows_.times[r], other));
        bias[r][e] += table_.weight(table_.template bucket_of<kIsCrowded>(apart));
      }
    }
  }

 private:
  TimeTable table_;
  RowTimes rows_;
  SplitTime const* times_ = nullptr;
  float weight_ = 0;    ///< Of the group with the lane's number.
  unsigned alike_ = 0;  ///< Groups of one weight.
};

}  // namespace headway::kernels
