#pragma once

#include "cuda/element.cuh"
#include "headway/kernels/hstu_mask.hpp"
#include "hstu/cuda/time_bias.cuh"

#include <cstdint>

namespace headway::kernels {

/// Bases of times are so much before a time of the block: then the high part of most times is 0.
inline constexpr std::int64_t kTimesBeforeBase = 3 << 22;

/// The time bias of blocks of 64 rows and some columns, in shared memory. A warpgroup finds for the one that computes
/// scores, while that does other things, in which buckets the pairs of 16 rows and 8 columns lie; and where these are
/// more than two the bias of each pair, rounded to T as scores are in the reference. Each warp does so for the same
/// warp of the other (HopperForwardBias), up to kStages blocks ahead, as far as there are slots for parts.
template <int kColumns, int kStages>
struct TimeValues {
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kPartGroups = 4;
  static constexpr int kSlots = kGroups / kPartGroups;  ///< Of a warp; a block may need all.
  static_assert(kGroups <= kWarpThreads);

  /// Of 16 rows; by bits, the first groups of parts.
  struct alignas(16) Parts {
    std::uint32_t several = 0;     ///< In which some group lies in several buckets.
    std::uint32_t found = 0;       ///< Of which the bias of each pair is in a slot.
    std::uint32_t first_slot = 0;  ///< Of the first part; the others follow in a ring.

    [[nodiscard]] __device__ __forceinline__ int num_found() const { return __popc(found); }
    /// @param number of those found
    [[nodiscard]] __device__ __forceinline__ std::uint32_t slot(int number) const {
      return (first_slot + static_cast<std::uint32_t>(number)) % kSlots;
    }
  };
  struct Stage {
    StripBias<kGroups> strips[4];
    Parts parts[4];
  };
  /// Of a group a thread has 4 values.
  struct Slot {
    uint2 values[kPartGroups][kWarpThreads];
  };

  HstuKeyRange seen[4];  ///< Keys that 16 rows of the tile may see; of parts without any the bias may be anything.
  Stage stages[kStages];
  Slot slots[4][kSlots];

  /// From scores to factor * score + bias, in place. By all lanes of a warp.
  /// @param stage of the block
  /// @param rows low parts of the times of the thread's rows
  /// @param columns times
  /// @param column of the thread, of 8
  template <class T>
  __device__ __forceinline__ void add_to(float (&scores)[kColumns / 2], float factor, std::uint32_t stage,
                                         float const (&rows)[2], BlockTimes<kColumns, 8> const& columns,
                                         std::int32_t column) const {
    StripBias<kGroups> const& strip = stages[stage].strips[warp()];
    Parts const parts = stages[stage].parts[warp()];
    float below[kGroups];
    strip.load_below(below);
    add_below(scores, factor, below);
#pragma unroll
    for (int first = 0; first < kGroups; first += kPartGroups) {
      if ((parts.several >> first & 1) == 0) continue;
      if ((parts.found >> first & 1) == 0) {
        strip.template add_rises<kPartGroups>(scores, first, columns.pairs + column / 2, rows);
        continue;
      }
      Slot const& slot = slots[warp()][parts.slot(__popc(parts.found & ((1u << first) - 1)))];
#pragma unroll
      for (int group = 0; group < kPartGroups; ++group) {
        uint2 const packed = slot.values[group][lane()];
        std::uint32_t const pairs[] = {packed.x, packed.y};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float2 const two = unpack<T>(pairs[i]);
          scores[4 * (first + group) + 2 * i] += two.x;
          scores[4 * (first + group) + 2 * i + 1] += two.y;
        }
      }
    }
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ int warp() {
    return static_cast<int>(threadIdx.x % 128) / kWarpThreads;
  }
  [[nodiscard]] static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % kWarpThreads); }
};

}  // namespace headway::kernels
