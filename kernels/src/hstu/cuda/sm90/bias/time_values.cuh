// SPDX-License-Identifier: Apache-2.0

// Time bias of a block for the consumers of the forward pass, written ahead by the time warpgroup (forward/bias.cuh).

#pragma once

#include "cuda/element.cuh"
#include "headway/kernels/hstu_mask.hpp"
#include "hstu/cuda/sm90/bias/time_bias.cuh"

#include <cstdint>

namespace headway::kernels {

/// The base of SplitTime lies this far before the time of the tile's first query: three quarters of the range of a low
/// part (2^24). So the high part of most times is 0.
inline constexpr std::int64_t kTimesBeforeBase = 3 << 22;

/// Time bias of blocks of 64 rows, in shared memory (forward pass). The time warpgroup (Sm90ForwardBias) fills it for
/// one consumer while that computes. For each 16 rows and 8 columns it finds the buckets of their pairs. If there are
/// more than two, or two that one comparison cannot tell apart, it stores the bias of each pair, rounded to T as the
/// reference rounds scores.
///
/// Each of its warps works for the same warp of the consumer. It runs up to kStages blocks ahead, as far as slots are
/// free.
template <int kColumns, int kStages>
struct TimeValues {
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kPartGroups = 4;
  static constexpr int kSlots = kGroups / kPartGroups;  ///< Slots of a warp; one block may need all of them.
  static_assert(kGroups <= kWarpThreads);

  /// Parts (kPartGroups groups of 8 columns) of 16 rows. Bit masks mark a part by its first group.
  struct alignas(16) Parts {
    std::uint32_t several = 0;     ///< Parts with a group whose pairs span more than one bucket.
    std::uint32_t found = 0;       ///< Parts whose bias per pair is in a slot.
    std::uint32_t first_slot = 0;  ///< Slot of the first part; the others follow in a ring.

    [[nodiscard]] __device__ __forceinline__ int num_found() const { return __popc(found); }
    /// @param index index among the parts that are found
    [[nodiscard]] __device__ __forceinline__ std::uint32_t slot(int index) const {
      return (first_slot + static_cast<std::uint32_t>(index)) % kSlots;
    }
  };
  struct Stage {
    StripBias<kGroups> strips[4];
    Parts parts[4];
  };
  /// Bias of the pairs of one part, packed by lane: a thread has 4 values per group.
  struct Slot {
    uint2 values[kPartGroups][kWarpThreads];
  };

  HstuKeyRange seen[4];  ///< Keys that each 16 rows of the tile may see. Parts without any may get any bias.
  Stage stages[kStages];
  Slot slots[4][kSlots];

  /// Replaces scores by factor * score + bias, in place. All lanes of a warp call it.
  /// @param stage stage of the block
  /// @param rows low parts of the times of the thread's rows
  /// @param columns times of the block's columns
  /// @param column first column of the thread, of 8
  template <class T>
  __device__ __forceinline__ void add_to(float (&s)[kColumns / 2], float factor, std::uint32_t stage,
                                         float const (&rows)[2], BlockTimes<kColumns, 8> const& columns,
                                         std::int32_t column) const {
    StripBias<kGroups> const& strip = stages[stage].strips[warp()];
    Parts const parts = stages[stage].parts[warp()];
    float below[kGroups];
    strip.load_below(below);
    add_below(s, factor, below);
#pragma unroll
    for (int first = 0; first < kGroups; first += kPartGroups) {
      if ((parts.several >> first & 1) == 0) continue;
      if ((parts.found >> first & 1) == 0) {
        strip.template add_rises<kPartGroups>(s, first, columns.pairs + column / 2, rows);
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
          s[4 * (first + group) + 2 * i] += two.x;
          s[4 * (first + group) + 2 * i + 1] += two.y;
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
