#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// A time as two floats, relative to another: `high` counts units of 2^24. Differences of both parts are exact where
/// times are less than 2^47 from the base, so that time_difference() is then the difference rounded once.
struct SplitTime {
  float high = 0, low = 0;

  SplitTime() = default;
  __device__ __forceinline__ SplitTime(std::int64_t time, std::int64_t base) {
    std::int64_t const relative = time - base;
    high = static_cast<float>(relative >> 24);
    low = static_cast<float>(static_cast<std::int32_t>(relative & 0xffffff));
  }
};

/// a - b
__device__ __forceinline__ float time_difference(SplitTime a, SplitTime b) {
  return fmaf(a.high - b.high, 16777216.0F, a.low - b.low);
}

/// Finds the bucket of a time difference (HstuBias::time_weights) without a search: exponent and the first bits of the
/// mantissa name a cell, in which at most one bound lies, as a rule. In shared memory.
///
/// Differences are whole, so that cell 0 is for 0 and cell 1 begins with 1; each octave has 8. The last begins with
/// 2^64, to which a difference may be rounded.
class TimeTable {
 public:
  static constexpr int kCells = 64 * 8 + 2;
  static constexpr std::int64_t kMostBounds = 1023;

  struct alignas(8) Cell {
    float bound;         ///< The first above the cell's begin.
    std::int32_t first;  ///< Bounds up to there.
  };

  [[nodiscard]] static constexpr std::uint32_t size_bytes(std::int64_t num_bounds) {
    return kCells * sizeof(Cell) + static_cast<std::uint32_t>(2 * num_bounds + 2) * sizeof(float);
  }

  TimeTable() = default;
  /// Of `memory` as large as size_bytes().
  __device__ __forceinline__ TimeTable(std::byte* memory, HstuBias const& bias)
      : cells_(reinterpret_cast<Cell*>(memory)),
        weights_(reinterpret_cast<float*>(memory + kCells * sizeof(Cell))),
        bounds_(weights_ + bias.num_time_bounds + 1),
        num_bounds_(static_cast<std::int32_t>(bias.num_time_bounds)) {}

  /// By `num_threads` threads, which meet once in it, and again before they look anything up.
  /// @param factor of the weights
  template <class Meet>
  __device__ __forceinline__ void fill(HstuBias const& bias, float factor, int thread, int num_threads, Meet meet) {
    copy_bounds(bias, factor, thread, num_threads);
    meet();
    fill_cells(thread, num_threads);
  }

  /// Several at a time, which wait for shared memory together.
  /// @tparam kIsPlain whether it is known that no cell has several bounds
  template <bool kIsPlain = false, int kCount>
  __device__ __forceinline__ void find_buckets(float const (&apart)[kCount], std::int32_t (&buckets)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      Cell const cell = cells_[cell_of(apart[i])];
      buckets[i] = cell.first + (apart[i] >= cell.bound ? 1 : 0);
    }
    if (kIsPlain || !is_crowded()) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      while (buckets[i] < num_bounds_ && apart[i] >= bounds_[buckets[i]]) ++buckets[i];
    }
  }

  [[nodiscard]] __device__ __forceinline__ std::int32_t bucket_of(float apart) const {
    std::int32_t bucket[1];
    find_buckets({apart}, bucket);
    return bucket[0];
  }

  /// Whether some cell has several bounds.
  [[nodiscard]] __device__ __forceinline__ bool is_crowded() const { return bounds_[num_bounds_] != 0; }
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t cell_of(float apart) {
    return max(__float_as_uint(apart) >> 20, kPlaceOfOne - 1) - (kPlaceOfOne - 1);
  }
  [[nodiscard]] __device__ __forceinline__ Cell cell(std::int32_t number) const { return cells_[number]; }

  [[nodiscard]] __device__ __forceinline__ float weight(std::int32_t bucket) const { return weights_[bucket]; }
  /// Between a bucket and the next.
  [[nodiscard]] __device__ __forceinline__ float bound_above(std::int32_t bucket) const { return bounds_[bucket]; }
  [[nodiscard]] __device__ __forceinline__ std::int32_t num_buckets() const { return num_bounds_ + 1; }

 private:
  static constexpr std::uint32_t kPlaceOfOne = 127 * 8;  ///< Of 1.0: its bits but for the last 20.

  __device__ __forceinline__ void copy_bounds(HstuBias const& bias, float factor, int thread, int num_threads) {
    auto const* weights = static_cast<float const*>(bias.time_weights);
    for (int i = thread; i <= num_bounds_; i += num_threads) weights_[i] = __ldg(weights + i) * factor;
    for (int i = thread; i < num_bounds_; i += num_threads) bounds_[i] = __ldg(bias.time_bounds + i);
    if (thread == 0) bounds_[num_bounds_] = 0;  // Then: whether a cell has more than one bound.
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
    return cell == 0 ? 0.0F : __uint_as_float((kPlaceOfOne - 1 + static_cast<std::uint32_t>(cell)) << 20);
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
