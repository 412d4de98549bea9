#include "jagged/cuda/launch.hpp"
#include "jagged/cuda/reduce_samples.cuh"

#include <algorithm>

namespace headway::kernels {

std::int64_t reduce_samples_scratch_bytes(JaggedRows const& rows) {
  return 2 * num_reduced_chunks(rows) * rows.num_columns * std::max<std::int64_t>(size_of(rows.type), 4);
}

void reduce_samples_async(JaggedRows const& rows, SampleReduction reduction, void* out, void* scratch,
                          CudaStream stream) {
  expect_sizes(rows);
  if (rows.num_samples == 0 || rows.num_columns == 0) return;
  constexpr unsigned kThreads = kWarp * kWarpsOfBlock;
  with_element(rows.type, [&]<class Element>() {
    auto const args = reduce_samples_args<Element>(rows, reduction, out, scratch);
    if (args.num_chunks > 0) {
      sum_chunks_kernel<Element><<<num_blocks(args.num_chunks * args.num_lanes, kThreads), kThreads, 0, stream>>>(args);
      check_cuda(cudaGetLastError(), "sum_chunks_kernel");
    }
    join_chunks_kernel<Element><<<num_blocks(args.num_samples * args.num_lanes, kThreads), kThreads, 0, stream>>>(args);
    check_cuda(cudaGetLastError(), "join_chunks_kernel");
  });
}

}  // namespace headway::kernels
