// SPDX-License-Identifier: Apache-2.0

// Rows and columns of the accumulator elements of a thread. Example: thread 37 of a warpgroup is lane 5 of warp 1. It
// has rows 16 + 1 = 17 and 25, and of each 8 columns, columns 2 and 3.

#pragma once

#include "cuda/device.cuh"

#include <cstdint>

namespace headway::kernels {

/// Coordinates of a thread's accumulator elements in a tile: see wgmma() in wgmma.cuh. Of each 8 columns, a thread
/// has two columns in two rows.
struct FragmentCoord {
  std::int32_t row = 0, column = 0;  ///< First row and column; the other row is 8 further.

  /// @param first_row first row of the warpgroup's 64
  explicit __device__ __forceinline__ FragmentCoord(std::int32_t first_row)
      : FragmentCoord(first_row, static_cast<std::int32_t>(threadIdx.x % 128)) {}
  /// @param thread index in the warpgroup
  __device__ __forceinline__ FragmentCoord(std::int32_t first_row, std::int32_t thread) {
    row = first_row + thread / 32 * 16 + thread % 32 / 4;
    column = thread % 4 * 2;
  }
};

/// Writes a thread's packed accumulator elements (pairs of columns, in the layout of a register operand) to a swizzled
/// tile in shared memory.
template <class Tile, int kSteps>
__device__ __forceinline__ void write_fragments(std::byte* tile, FragmentCoord const& coord,
                                                std::uint32_t const (&pairs)[kSteps][4],
                                                std::int32_t first_column = 0) {
#pragma unroll
  for (int i = 0; i < kSteps * 4; ++i) {
    auto const row = static_cast<std::uint32_t>(coord.row + i % 2 * 8);
    auto const column = static_cast<std::uint32_t>(first_column + coord.column + i / 2 * 8);
    *reinterpret_cast<std::uint32_t*>(tile + Tile::offset_of(row, column)) = pairs[i / 4][i % 4];
  }
}

}  // namespace headway::kernels
