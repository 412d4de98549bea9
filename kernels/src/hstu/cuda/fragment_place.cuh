#pragma once

#include "cuda/device.cuh"

#include <cstdint>

namespace headway::kernels {

/// Coordinates of a thread's accumulator elements in a tile: see multiply() in wgmma.cuh. Of each 8 columns, a thread
/// has two columns in two rows.
struct FragmentPlace {
  std::int32_t row = 0, column = 0;  ///< First row and column; the other row is 8 further.

  /// @param first_row first row of the warpgroup's 64
  explicit __device__ __forceinline__ FragmentPlace(std::int32_t first_row)
      : FragmentPlace(first_row, static_cast<std::int32_t>(threadIdx.x % 128)) {}
  /// @param thread index in the warpgroup
  __device__ __forceinline__ FragmentPlace(std::int32_t first_row, std::int32_t thread) {
    row = first_row + thread / 32 * 16 + thread % 32 / 4;
    column = thread % 4 * 2;
  }
};

}  // namespace headway::kernels
