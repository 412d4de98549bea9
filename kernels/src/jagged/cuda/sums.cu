// SPDX-License-Identifier: Apache-2.0

// Launches of sums over jagged rows: samples (reduce_samples.cuh), dense rows (add_dense.cuh), copies (sum_copies.cuh).

#include "jagged/cuda/add_dense.cuh"
#include "jagged/cuda/launch.hpp"
#include "jagged/cuda/reduce_samples.cuh"
#include "jagged/cuda/sum_copies.cuh"

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
    base::check_cuda(cudaGetLastError(), "sum_chunks_kernel");
    std::int64_t const num_samples = args.num_samples;
    join_chunks_kernel<Vector><<<num_blocks(num_samples * args.num_lanes, kThreads), kThreads, 0, stream>>>(args);
    base::check_cuda(cudaGetLastError(), "join_chunks_kernel");
  });
}

void add_dense_async(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out, CudaStream stream) {
  expect_sizes(rows);
  if (rows.num_rows == 0 || rows.num_columns == 0) return;
  with_element_vector(rows.type, rows.num_columns, {rows.values, dense, out}, [&]<class Vector>() {
    auto const args = add_dense_args<Vector>(rows, dense, max_length, out);
    add_dense_kernel<Vector><<<num_blocks(args.num_warps, kWarpsOfBlock), kWarp * kWarpsOfBlock, 0, stream>>>(args);
  });
  base::check_cuda(cudaGetLastError(), "add_dense_kernel");
}

void sum_copies_async(CopiedItems const& items, std::span<CopiedRows const> tensors, CudaStream stream) {
  expect_sizes(items);
  for (; !tensors.empty(); tensors = tensors.subspan(std::min<std::size_t>(tensors.size(), kMaxSummedTensors))) {
    auto const args = sum_copies_args(items, tensors.first(std::min<std::size_t>(tensors.size(), kMaxSummedTensors)));
    if (args.num_warps == 0) return;
    sum_copies_kernel<<<num_blocks(args.num_warps, kWarpsOfBlock), kWarp * kWarpsOfBlock, 0, stream>>>(args);
    base::check_cuda(cudaGetLastError(), "sum_copies_kernel");
  }
}

}  // namespace headway::kernels
