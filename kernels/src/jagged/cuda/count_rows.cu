#include "jagged/cuda/count_rows.cuh"
#include "jagged/cuda/launch.hpp"

namespace headway::kernels {

void count_rows_async(SegmentGroups const& groups, CudaStream stream) {
  if (groups.num_groups == 0) return;
  constexpr unsigned kThreads = kWarp * kWarpsOfBlock;
  count_rows_kernel<<<num_blocks(groups.num_groups, kThreads), kThreads, 0, stream>>>(groups);
  check_cuda(cudaGetLastError(), "count_rows_kernel");
}

}  // namespace headway::kernels
