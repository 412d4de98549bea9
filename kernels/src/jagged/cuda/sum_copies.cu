#include "jagged/cuda/launch.hpp"
#include "jagged/cuda/sum_copies.cuh"

#include <algorithm>

namespace headway::kernels {

void sum_copies_async(CopiedItems const& items, std::span<CopiedRows const> tensors, CudaStream stream) {
  expect_sizes(items);
  for (; !tensors.empty(); tensors = tensors.subspan(std::min<std::size_t>(tensors.size(), kMostSummedTensors))) {
    auto const args = sum_copies_args(items, tensors.first(std::min<std::size_t>(tensors.size(), kMostSummedTensors)));
    if (args.num_warps == 0) return;
    sum_copies_kernel<<<num_blocks(args.num_warps, kWarpsOfBlock), kWarp * kWarpsOfBlock, 0, stream>>>(args);
    check_cuda(cudaGetLastError(), "sum_copies_kernel");
  }
}

}  // namespace headway::kernels
