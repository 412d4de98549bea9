// SPDX-License-Identifier: Apache-2.0

// Times and their buckets on devices. Times are 64-bit integers; kernels compute with floats, which are faster,
// without losing exactness: a time is split into two floats, and a table in shared memory replaces the search for a
// bucket.
//
// Example: times 2^30 + 5 and 2^30 with base 0. high is 64 for both, low is 5 and 0: the difference is 5. As plain
// floats both would be 2^30, and the difference 0.

#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// A time relative to a base, as two floats: `high` counts units of 2^24, `low` is the rest. Differences of each part
/// are exact for times less than 2^47 from the base; time_difference() is then the difference, rounded once.
struct SplitTime {
  float high = 0, low = 0;

  SplitTime() = default;
  __device__ __forceinline__ SplitTime(std::int64_t time, std::int64_t base) {
    std::int64_t const relative = time - base;
    high = static_cast<float>(relative >> 24);
    low = static_cast<float>(static_cast<std::int32_t>(relative & 0xffffff));
  }
};

/// a - b, rounded once.
__device__ __forceinline__ float time_difference(SplitTime a, SplitTime b) {
  return fmaf(a.high - b.high, 16777216.0F, a.low - b.low);
}

/// Table in shared memory that finds the bucket of a time difference (HstuBias::time_weights) without a search.
///
/// Idea: exponent and upper 3 bits of the mantissa of a float name a cell. Usually a cell holds at most one bound, so
/// one load and one comparison give the bucket. Differences are whole numbers, so cell 0 is for 0 and cell 1 begins
/// with 1; each octave has 8 cells. The last cell begins with 2^64, to which a difference may be rounded.
///
/// Example: bounds 10, 100, 1000. Differences from 96 up to 104 are cell 53 = 1 + 6 * 8 + 4. It stores first = 1 (one
/// bound up to 96) and bound = 100. So 98 is in bucket 1, and 103 in bucket 2.
///
/// Invariant: bucket = number of bounds that the difference reaches. If a cell holds several bounds (is_crowded()), a
/// short scan follows the comparison.
/// Complexity: one 8-byte load per difference. Filling takes one binary search per cell.
/// Memory: kCells cells, then num_time_bounds + 1 weights, then num_time_bounds bounds and one flag.
class TimeTable {
 public:
  static constexpr int kCells = 64 * 8 + 2;
  static constexpr std::int64_t kMaxBounds = 1023;

  struct alignas(8) Cell {
    float bound;         ///< First bound above the cell's begin, or infinity.
    std::int32_t first;  ///< Number of bounds up to the cell's begin.
  };

  [[nodiscard]] static constexpr std::uint32_t size_bytes(std::int64_t num_bounds) {
    return kCells * sizeof(Cell) + static_cast<std::uint32_t>(2 * num_bounds + 2) * sizeof(float);
  }

  TimeTable() = default;
  /// @param memory size_bytes() bytes of shared memory
  __device__ __forceinline__ TimeTable(std::byte* memory, HstuBias const& bias)
      : cells_(reinterpret_cast<Cell*>(memory)),
        weights_(reinterpret_cast<float*>(memory + kCells * sizeof(Cell))),
        bounds_(weights_ + bias.num_time_bounds + 1),
        num_bounds_(static_cast<std::int32_t>(bias.num_time_bounds)) {}

  /// Fills the table with `num_threads` threads. They need a barrier before the first look-up.
  /// @param factor multiplies the weights
  /// @param meet barrier of these threads; it is called once
  template <class Meet>
  __device__ __forceinline__ void fill(HstuBias const& bias, float factor, int thread, int num_threads, Meet meet) {
    copy_bounds(bias, factor, thread, num_threads);
    meet();
    fill_cells(thread, num_threads);
  }

  /// Finds kCount buckets at once, so that their loads overlap.
  /// @param apart absolute time differences
  /// @tparam kIsPlain it is known that no cell holds several bounds
  template <bool kIsPlain = false, int kCount>
  __device__ __forceinline__ void find_buckets(float const (&apart)[kCount], std::int32_t (&buckets)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Cell const cell = cells_[cell_of(apart[i])];
      buckets[i] = cell.first + (apart[i] >= cell.bound ? 1 : 0);
    }
    if constexpr (!kIsPlain) {
      if (!is_crowded()) return;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        while (buckets[i] < num_bounds_ && apart[i] >= bounds_[buckets[i]]) ++buckets[i];
      }
    }
  }

  [[nodiscard]] __device__ __forceinline__ std::int32_t bucket_of(float apart) const {
    std::int32_t bucket[1];
    find_buckets({apart}, bucket);
    return bucket[0];
  }

  /// Does some cell hold several bounds?
  [[nodiscard]] __device__ __forceinline__ bool is_crowded() const { return bounds_[num_bounds_] != 0; }
  /// Cell of a time difference, which must not be -0.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t cell_of(float apart) {
    return max(__float_as_uint(apart) >> 20, kBitsOfOne - 1) - (kBitsOfOne - 1);
  }
  [[nodiscard]] __device__ __forceinline__ Cell cell(std::int32_t index) const { return cells_[index]; }

  [[nodiscard]] __device__ __forceinline__ float weight(std::int32_t bucket) const { return weights_[bucket]; }
  /// Bound between a bucket and the next.
  [[nodiscard]] __device__ __forceinline__ float bound_above(std::int32_t bucket) const { return bounds_[bucket]; }
  [[nodiscard]] __device__ __forceinline__ std::int32_t num_buckets() const { return num_bounds_ + 1; }

 private:
  static constexpr std::uint32_t kBitsOfOne = 127 * 8;  ///< Upper 12 bits of 1.0F.

  __device__ __forceinline__ void copy_bounds(HstuBias const& bias, float factor, int thread, int num_threads) {
    auto const* weights = static_cast<float const*>(bias.time_weights);
    for (int i = thread; i <= num_bounds_; i += num_threads) weights_[i] = __ldg(weights + i) * factor;
    for (int i = thread; i < num_bounds_; i += num_threads) bounds_[i] = __ldg(bias.time_bounds + i);
    if (thread == 0) bounds_[num_bounds_] = 0;  // The flag of is_crowded().
  }
  __device__ __forceinline__ void fill_cells(int thread, int num_threads) {
    for (int cell = thread; cell < kCells; cell += num_threads) {
      std::int32_t const first = num_bounds_up_to(begin_of(cell));
      float const bound = first < num_bounds_ ? bounds_[first] : __uint_as_float(0x7f800000);
      cells_[cell] = {bound, first};
      bool const is_crowded = first + 1 < num_bounds_ && cell > 0 && bounds_[first + 1] < begin_of(cell + 1);
      if (is_crowded) bounds_[num_bounds_] = 1;
    }
  }

  [[nodiscard]] static __device__ __forceinline__ float begin_of(int cell) {
    return cell == 0 ? 0.0F : __uint_as_float((kBitsOfOne - 1 + static_cast<std::uint32_t>(cell)) << 20);
  }

  [[nodiscard]] __device__ __forceinline__ std::int32_t num_bounds_up_to(float value) const {
    std::int32_t low = 0, high = num_bounds_;
    while (low < high) {
      std::int32_t const middle = (low + high) / 2;
      if (bounds_[middle] <= value) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  Cell* cells_ = nullptr;
  float *weights_ = nullptr, *bounds_ = nullptr;
  std::int32_t num_bounds_ = 0;
};

}  // namespace headway::kernels
