#pragma once

#include "cuda/element.cuh"
#include "hstu/cuda/time_bias.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Bases of times are so much before a time of the block: then the high part of most times is 0.
inline constexpr std::int64_t kTimesBeforeBase = 3 << 22;

/// The time bias of 64 rows and some columns, in shared memory. A warpgroup finds for the one that computes scores,
/// while that does other things, in which buckets the pairs of 16 rows and 8 columns lie; and where these are more than
/// two the bias of each pair, rounded to T as scores are in the reference. Each warp does so for the same warp of the
/// other.
template <int kColumns>
struct TimeValues {
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kPartGroups = 4;
  static_assert(kGroups <= kWarpThreads);

  /// By bits, the first groups of parts.
  struct Parts {
    std::uint32_t several;  ///< In which some group lies in several buckets.
    std::uint32_t found;    ///< Of which the bias of each pair is here.
  };

  StripBias<kGroups> strips[4];
  Parts parts[4];
  uint4 values[4][kGroups / 2][kWarpThreads];  ///< Of two groups a thread has 8 values.

  /// By all lanes of a warp.
  /// @param rows times of a block of rows
  /// @param row of the thread, the first of two (FragmentPlace)
  /// @param columns times
  /// @param column of the thread, of 8
  /// @param wait until what is here has been added
  template <class T, class Rows, class Wait>
  __device__ __forceinline__ void find(TimeTable const& table, Rows const& rows, std::int32_t row,
                                       BlockTimes<kColumns, 8> const& columns, std::int32_t column, Wait wait) {
    // A lane those of a group.
    int const own_group = lane() % kGroups;
    TimeRange const own_columns = columns.ranges[own_group], own_rows = rows.ranges[row / 16];
    BucketRange const own = buckets_between(table, own_rows, own_columns);
    bool const is_near = __all_sync(kAllLanes, own_rows.is_near_base() && own_columns.is_near_base());
    Parts const of_warp = parts_of(own, is_near && StripBias<kGroups>::holds(table, own));
    bool const is_found = (of_warp.found >> (own_group - own_group % kPartGroups) & 1) != 0;
    auto const own_bias = StripBias<kGroups>::group_of(table, own, is_found);
    wait();
    strips[warp()].set(own_group, own_bias);
    if (lane() == 0) parts[warp()] = of_warp;
    RowTimes const times = rows.times_of_rows(row);
    TimePair const* const pairs = columns.pairs + column / 2;
    // One piece of code for all: unrolled, fetching instructions would take longer than running them.
#pragma unroll 1
    for (std::uint32_t left = of_warp.found; left != 0; left &= left - 1) {
      int const first = __ffs(static_cast<int>(left)) - 1;
#pragma unroll 1
      for (int group = first; group < first + kPartGroups; group += 2) {
        values[warp()][group / 2][lane()] = find_two<T>(table, times, pairs + 4 * group);
      }
    }
  }

  /// From scores to factor * score + bias, in place. By all lanes of a warp.
  /// @param rows low parts of the times of the thread's rows
  template <class T>
  __device__ __forceinline__ void add_to(float (&scores)[kColumns / 2], float factor, float const (&rows)[2],
                                         BlockTimes<kColumns, 8> const& columns, std::int32_t column) const {
    Parts const of_warp = parts[warp()];
    float below[kGroups];
    strips[warp()].load_below(below);
    add_below(scores, factor, below);
#pragma unroll
    for (int first = 0; first < kGroups; first += kPartGroups) {
      if ((of_warp.several >> first & 1) == 0) continue;
      if ((of_warp.found >> first & 1) == 0) {
        strips[warp()].template add_rises<kPartGroups>(
            scores, first, columns.pairs + column / 2,
            [&rows](int row, SplitTime time) { return fabsf(rows[row] - time.low); });
        continue;
      }
#pragma unroll
      for (int group = first; group < first + kPartGroups; group += 2) {
        uint4 const packed = values[warp()][group / 2][lane()];
        std::uint32_t const pairs[] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 const two = unpack<T>(pairs[i]);
          scores[4 * group + 2 * i] += two.x;
          scores[4 * group + 2 * i + 1] += two.y;
        }
      }
    }
  }

 private:
  /// In the range of T: SiLU of less is 0, and of more beyond it.
  template <class T>
  [[nodiscard]] static __device__ __forceinline__ float bounded(float weight) {
    constexpr float kMost = 65504;
    return std::is_same_v<T, Float16> ? fminf(fmaxf(weight, -kMost), kMost) : weight;
  }

  /// The bias in two groups, looked up pair by pair.
  /// @param columns times of the thread's in the first group
  template <class T>
  [[nodiscard]] static __device__ __forceinline__ uint4 find_two(TimeTable const& table, RowTimes const& rows,
                                                                 TimePair const* columns) {
    float apart[8];
    std::int32_t buckets[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      apart[i] = fabsf(time_difference(rows.times[i % 4 / 2], columns[4 * (i / 4)].times[i % 2]));
    }
    table.find_buckets(apart, buckets);
    std::uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i] = pack<T>(bounded<T>(table.weight(buckets[2 * i])), bounded<T>(table.weight(buckets[2 * i + 1])));
    }
    return {packed[0], packed[1], packed[2], packed[3]};
  }

  [[nodiscard]] static __device__ __forceinline__ int warp() {
    return static_cast<int>(threadIdx.x % 128) / kWarpThreads;
  }
  [[nodiscard]] static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % kWarpThreads); }

  /// @param own buckets of the lane's group
  /// @param is_told whether StripBias gives their bias where they are several; else pairs are found one by one
  [[nodiscard]] static __device__ __forceinline__ Parts parts_of(BucketRange const& own, bool is_told) {
    auto const parts_with = [](bool is_so) {
      std::uint32_t bits = __ballot_sync(kAllLanes, is_so);
#pragma unroll
      for (int groups = 1; groups < kPartGroups; groups *= 2) bits |= bits >> groups;
      return bits & (0x11111111u >> (kWarpThreads - kGroups));
    };
    static_assert(kPartGroups == 4);
    bool const are_several = own.first != own.last;
    return {parts_with(are_several), parts_with(are_several && !is_told)};
  }
};

}  // namespace headway::kernels
