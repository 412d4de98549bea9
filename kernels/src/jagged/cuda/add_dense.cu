#include "jagged/cuda/add_dense.cuh"
#include "jagged/cuda/launch.hpp"

namespace headway::kernels {

void add_dense_async(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out, CudaStream stream) {
  expect_sizes(rows);
  if (rows.num_rows == 0 || rows.num_columns == 0) return;
  with_element_vector(rows.type, rows.num_columns, {rows.values, dense, out}, [&]<class Vector>() {
    auto const args = add_dense_args<Vector>(rows, dense, max_length, out);
    add_dense_kernel<Vector><<<num_blocks(args.num_warps, kWarpsOfBlock), kWarp * kWarpsOfBlock, 0, stream>>>(args);
  });
  check_cuda(cudaGetLastError(), "add_dense_kernel");
}

}  // namespace headway::kernels
