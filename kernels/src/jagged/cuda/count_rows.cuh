#pragma once

#include "jagged/cuda/warp_rows.cuh"
#include "jagged/group_rows.hpp"

namespace headway::kernels {

/// Kernel: one thread per group.
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    count_rows_kernel(__grid_constant__ SegmentGroups const groups) {
  std::int64_t const group = std::int64_t{blockIdx.x} * (kWarp * kWarpsOfBlock) + threadIdx.x;
  if (group < groups.num_groups) groups.num_rows[group] = rows_of_group(groups, group);
}

}  // namespace headway::kernels
