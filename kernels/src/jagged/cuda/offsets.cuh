// SPDX-License-Identifier: Apache-2.0

// Steps of the scan that gives the offsets before and after a move.
//
// Example: lengths before 2 1, after 1 2 0, so num_rows is 3. Steps 0 2 1 | -3 1 2 0, inclusive sums 0 2 3 | 0 1 3 3.

#pragma once

#include "headway/kernels/jagged_offsets.hpp"
#include "jagged/cuda/warp_rows.cuh"
#include "jagged/group_rows.hpp"

#include <cstdint>

namespace headway::kernels {

/// Step from offset i - 1 to offset i. One inclusive scan over these steps gives both lists of offsets: where the
/// second list begins, the step is minus the sum of all lengths before.
template <class Length>
__device__ std::int64_t offset_step(MovedLengths const& lengths, std::int64_t i) {
  if (i == 0) return 0;
  if (i <= lengths.num_before) return static_cast<Length const*>(lengths.before)[i - 1];
  if (i == lengths.num_before + 1) return -lengths.num_rows;
  return static_cast<Length const*>(lengths.after)[i - lengths.num_before - 2];
}

/// Kernel: counts the rows of groups of consecutive segments, one thread per group.
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    count_rows_kernel(__grid_constant__ SegmentGroups const groups) {
  std::int64_t const group = std::int64_t{blockIdx.x} * (kWarp * kWarpsOfBlock) + threadIdx.x;
  if (group < groups.num_groups) groups.num_rows[group] = rows_of_group(groups, group);
}

}  // namespace headway::kernels
