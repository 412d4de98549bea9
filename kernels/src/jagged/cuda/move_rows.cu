// SPDX-License-Identifier: Apache-2.0

// Launch of jagged row moves; the kernel is in move_rows.cuh. More than 64 tensors take several launches, which keeps
// the arguments of a kernel below 4 KiB.

#include "headway/base/cuda_check.hpp"
#include "jagged/cuda/launch.hpp"
#include "jagged/cuda/move_rows.cuh"

#include <algorithm>

namespace headway::kernels {

void move_rows_async(JaggedMove const& move, std::span<MovedRows const> tensors, CudaStream stream) {
  expect_sizes(move, tensors);
  int const num_multiprocessors = base::device_attribute(cudaDevAttrMultiProcessorCount);
  for (; !tensors.empty(); tensors = tensors.subspan(std::min<std::size_t>(tensors.size(), kMaxMovedTensors))) {
    auto const first = tensors.first(std::min<std::size_t>(tensors.size(), kMaxMovedTensors));
    auto const args = move_rows_args(move, first, num_multiprocessors);
    if (args.num_warps == 0) return;
    move_rows_kernel<<<num_blocks(args.num_warps, kWarpsOfBlock), kWarp * kWarpsOfBlock, 0, stream>>>(args);
    base::check_cuda(cudaGetLastError(), "move_rows_kernel");
  }
}

}  // namespace headway::kernels
