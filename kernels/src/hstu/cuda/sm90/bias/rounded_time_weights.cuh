// SPDX-License-Identifier: Apache-2.0

// Time weights for single pairs in the forward pass: bucket and weight in one 8-byte load. The reference rounds
// scores to the element type, so rounded weights are exact enough.
//
// A cell of a TimeTable covers a small range of time differences (time_table.cuh). With at most one bound in it, the
// cell needs one comparison: weight below the bound, or from it on. A table with two bounds in one cell is crowded, and
// then this short cut is not used. Example: bounds 500 and 700 lie in different cells, bounds 500 and 500.01 in one.

#pragma once

#include "cuda/element.cuh"
#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Time weights by cell of a TimeTable, rounded to 16 bits, in shared memory: one load gives the weight of a time
/// difference. Only for tables with few bounds in which no cell holds several.
class RoundedTimeWeights {
 public:
  /// Most bounds for which this table fits: with these cells it needs no more room than a TimeTable of kMaxBounds
  /// alone.
  static constexpr std::int64_t kMaxBounds = 509;

  [[nodiscard]] static constexpr std::uint32_t size_bytes(std::int64_t num_bounds) {
    return num_bounds <= kMaxBounds ? TimeTable::kCells * sizeof(Cell) : 0;
  }
  /// Can rounded cells represent this table?
  [[nodiscard]] static __device__ __forceinline__ bool can_hold(TimeTable const& table) {
    return table.num_buckets() <= kMaxBounds + 1 && !table.is_crowded();
  }

  /// @param memory size_bytes() bytes of shared memory
  explicit __device__ __forceinline__ RoundedTimeWeights(std::byte* memory) : cells_(reinterpret_cast<Cell*>(memory)) {}

  /// Fills the cells with `num_threads` threads. They need a barrier before the first look-up.
  template <class T>
  __device__ __forceinline__ void fill(TimeTable const& table, int thread, int num_threads) const {
    for (int i = thread; i < TimeTable::kCells; i += num_threads) {
      TimeTable::Cell const cell = table.cell(i);
      std::int32_t const above = min(cell.first + 1, table.num_buckets() - 1);
      cells_[i] = {cell.bound, pack_bounded<T>(table.weight(cell.first), table.weight(above))};
    }
  }

  /// Looks up 2 * kCount time differences at once, so that their loads overlap.
  /// @param weights receives two packed weights per word
  template <int kCount>
  __device__ __forceinline__ void find(float const (&apart)[2 * kCount], std::uint32_t (&weights)[kCount]) const {
    Cell found[2 * kCount];
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) found[i] = cells_[TimeTable::cell_of(apart[i])];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      std::uint32_t of_two[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Cell const& cell = found[2 * i + j];
        of_two[j] = apart[2 * i + j] >= cell.bound ? cell.weights >> 16 : cell.weights;
      }
      weights[i] = __byte_perm(of_two[0], of_two[1], 0x5410);
    }
  }

  /// Packs two weights after clamping them to the range of T. Clamping is harmless: SiLU of less is 0, and SiLU of more
  /// is beyond the range anyway.
  template <class T>
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t pack_bounded(float low, float high) {
    // Comparisons with NaN are false, so NaN stays NaN.
    auto const bounded = [](float weight) {
      constexpr float kMost = 65504;
      if (!std::is_same_v<T, Float16>) return weight;
      return weight > kMost ? kMost : weight < -kMost ? -kMost : weight;
    };
    return pack<T>(bounded(low), bounded(high));
  }

 private:
  struct alignas(8) Cell {
    float bound;
    std::uint32_t weights;  ///< Lower half: weight below the bound. Upper half: weight from the bound on.
  };

  Cell* cells_;
};

}  // namespace headway::kernels
