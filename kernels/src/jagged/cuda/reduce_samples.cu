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
  with_element_vector(rows.type, rows.num_columns, {rows.values, out}, [&]<class Vector>() {
    auto const args = reduce_samples_args<Vector>(rows, reduction, out, scratch);
    sum_chunks_kernel<Vector><<<num_blocks(args.num_chunks * args.num_lanes, kThreads), kThreads, 0, stream>>>(args);
    check_cuda(cudaGetLastError(), "sum_chunks_kernel");
    std::int64_t const num_samples = args.num_samples;
    join_chunks_kernel<Vector><<<num_blocks(num_samples * args.num_lanes, kThreads), kThreads, 0, stream>>>(args);
    check_cuda(cudaGetLastError(), "join_chunks_kernel");
  });
}

}  // namespace headway::kernels
