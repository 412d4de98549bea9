#pragma once

#include "cuda/device.cuh"

#include <cstdint>

namespace headway::kernels {

/// Where a thread's sums of a product lie: see multiply() in wgmma.cuh. Of each 8 columns a thread has two in two rows.
struct FragmentPlace {
  std::int32_t row = 0, column = 0;  ///< The first; the other row is 8 further.

  /// @param first_row of the warpgroup
  explicit __device__ __forceinline__ FragmentPlace(std::int32_t first_row)
      : FragmentPlace(first_row, static_cast<std::int32_t>(threadIdx.x % 128)) {}
  /// @param thread of the warpgroup
  __device__ __forceinline__ FragmentPlace(std::int32_t first_row, std::int32_t thread) {
    row = first_row + thread / 32 * 16 + thread % 32 / 4;
    column = thread % 4 * 2;
  }
};

}  // namespace headway::kernels
