// SPDX-License-Identifier: Apache-2.0

// Launch of run-length encoding; run_lengths.cuh explains it. run_of serves as output of the scan, so the scan needs
// no array of its own.

#include "jagged/cuda/launch.hpp"
#include "jagged/cuda/run_lengths.cuh"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cstddef>

namespace headway::kernels {

namespace {

template <class Key>
struct BeginsRun {
  Key const* keys;
  __device__ std::int64_t operator()(std::int64_t i) const { return begins_run(keys, i) ? 1 : 0; }
};

/// Bytes at the start of the scratch memory that hold the begins of runs; the memory of the scan follows them.
std::int64_t begins_bytes(RunLengths const& runs) {
  constexpr std::int64_t kAlignment = 256;
  return ((runs.size + 1) * 8 + kAlignment - 1) / kAlignment * kAlignment;
}

/// Inclusive scan of the beginnings of runs: run_of[i] becomes the number of runs up to entry i.
template <class Key>
void count_begun_runs(RunLengths const& runs, void* scratch, std::size_t& scratch_bytes, CudaStream stream) {
  auto const begins = thrust::make_transform_iterator(thrust::counting_iterator<std::int64_t>(0),
                                                      BeginsRun<Key>{static_cast<Key const*>(runs.keys)});
  base::check_cuda(cub::DeviceScan::InclusiveSum(scratch, scratch_bytes, begins, runs.run_of, runs.size, stream),
                   "cub::DeviceScan");
}

template <class Key>
void find_async(RunLengths const& runs, void* scratch, std::int64_t scratch_bytes, CudaStream stream) {
  if (runs.size == 0) {
    return base::check_cuda(cudaMemsetAsync(runs.num_runs, 0, sizeof(*runs.num_runs), stream), "cudaMemsetAsync");
  }
  auto* const begins = static_cast<std::int64_t*>(scratch);
  auto scan_bytes = static_cast<std::size_t>(scratch_bytes - begins_bytes(runs));
  count_begun_runs<Key>(runs, static_cast<std::byte*>(scratch) + begins_bytes(runs), scan_bytes, stream);
  constexpr unsigned kThreads = kWarp * kWarpsOfBlock;
  unsigned const blocks = num_blocks(runs.size, kThreads);
  begin_runs_kernel<Key><<<blocks, kThreads, 0, stream>>>(runs, begins);
  base::check_cuda(cudaGetLastError(), "begin_runs_kernel");
  measure_runs_kernel<Key><<<blocks, kThreads, 0, stream>>>(runs, begins);
  base::check_cuda(cudaGetLastError(), "measure_runs_kernel");
}

}  // namespace

std::int64_t run_lengths_scratch_bytes(RunLengths const& runs) {
  std::size_t scan_bytes = 0;
  count_begun_runs<std::int64_t>(runs, nullptr, scan_bytes, nullptr);
  return begins_bytes(runs) + static_cast<std::int64_t>(scan_bytes);
}

void find_run_lengths_async(RunLengths const& runs, void* scratch, std::int64_t scratch_bytes, CudaStream stream) {
  expect(scratch_bytes >= run_lengths_scratch_bytes(runs), "run lengths: there is too little scratch memory");
  if (runs.type == RunLengths::KeyType::kInt32) return find_async<std::int32_t>(runs, scratch, scratch_bytes, stream);
  find_async<std::int64_t>(runs, scratch, scratch_bytes, stream);
}

}  // namespace headway::kernels
