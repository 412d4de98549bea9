// SPDX-License-Identifier: Apache-2.0

// Offsets of jagged items on a device. CUB's scan reads its input through an iterator that computes each step
// (offsets.cuh), so the lengths of items before and after a move are scanned in one pass, without a copy.

#include "jagged/cuda/launch.hpp"
#include "jagged/cuda/offsets.cuh"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cstddef>

namespace headway::kernels {

namespace {

/// Input of the scan.
template <class Length>
struct OffsetStep {
  MovedLengths lengths;
  __device__ std::int64_t operator()(std::int64_t i) const { return offset_step<Length>(lengths, i); }
};

template <class Length>
void scan(MovedLengths const& lengths, void* scratch, std::size_t& scratch_bytes, CudaStream stream) {
  auto const steps =
      thrust::make_transform_iterator(thrust::counting_iterator<std::int64_t>(0), OffsetStep<Length>{lengths});
  base::check_cuda(
      cub::DeviceScan::InclusiveSum(scratch, scratch_bytes, steps, lengths.offsets, lengths.num_offsets(), stream),
      "cub::DeviceScan");
}

void scan_lengths(MovedLengths const& lengths, void* scratch, std::size_t& scratch_bytes, CudaStream stream) {
  if (lengths.type == MovedLengths::LengthType::kInt32) {
    return scan<std::int32_t>(lengths, scratch, scratch_bytes, stream);
  }
  scan<std::int64_t>(lengths, scratch, scratch_bytes, stream);
}

}  // namespace

std::int64_t find_offsets_scratch_bytes(MovedLengths const& lengths) {
  std::size_t scratch_bytes = 0;
  scan_lengths(lengths, nullptr, scratch_bytes, nullptr);
  return static_cast<std::int64_t>(scratch_bytes);
}

void find_offsets_async(MovedLengths const& lengths, void* scratch, std::int64_t scratch_bytes, CudaStream stream) {
  auto num_bytes = static_cast<std::size_t>(scratch_bytes);
  scan_lengths(lengths, scratch, num_bytes, stream);
}

void count_rows_async(SegmentGroups const& groups, CudaStream stream) {
  if (groups.num_groups == 0) return;
  constexpr unsigned kThreads = kWarp * kWarpsOfBlock;
  count_rows_kernel<<<num_blocks(groups.num_groups, kThreads), kThreads, 0, stream>>>(groups);
  base::check_cuda(cudaGetLastError(), "count_rows_kernel");
}

}  // namespace headway::kernels
