// SPDX-License-Identifier: Apache-2.0

// The sum of the squares of a batch's values, for the norm of gradients.
//
// Idea: a grid of fixed size goes through the values in strides, and each thread adds its squares in float64. A tree in
// shared memory adds the sums of a block's threads. A second kernel of one block adds the sums of the blocks likewise.
//
// Example: 300,000 values on 131,072 threads. Thread 5 adds the squares of values 5, 131,077 and 262,149.
//
// Invariants: the order of additions depends only on the number of known values, so the sum has the same bits in every
//   run; there are no atomics. Loads are scalar, because wider ones would make the order depend on the alignment.
// Complexity: O(values), two launches, 4 KiB of scratch memory.

#include "cuda/batch/batch_view.cuh"
#include "cuda/exchange/batch_kernels.hpp"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

namespace headway::embedding {

namespace {

constexpr std::uint32_t kNumBlocks = 512;

/// Sum over the threads of a block, for thread 0. All threads call it, once per kernel.
__device__ double sum_of_block(double value) {
  __shared__ double sums[kBlockThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (std::uint32_t half = kBlockThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

struct SquaresArgs {
  float const* values;
  DeviceCount num_keys;
  std::uint32_t dim;
  double* sums;  ///< (kNumBlocks) Output.
};

__global__ void __launch_bounds__(kBlockThreads) sum_squares_kernel(SquaresArgs args) {
  std::uint64_t const size = std::uint64_t{args.num_keys()} * args.dim;
  double sum = 0;
#pragma unroll 4
  for (std::uint64_t i = thread_index(); i < size; i += kNumBlocks * kBlockThreads) {
    double const value = args.values[i];
    sum += value * value;
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

// One block.
__global__ void __launch_bounds__(kBlockThreads) add_sums_kernel(double const* sums, double* total) {
  double sum = 0;
  for (std::uint32_t i = threadIdx.x; i < kNumBlocks; i += kBlockThreads) sum += sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace

void add_squares_async(KeyValues const& values, std::size_t dim, double* sum, cudaStream_t stream) {
  if (values.keys.size() == 0) return;
  DeviceBuffer<double> const sums(kNumBlocks, stream);
  sum_squares_kernel<<<kNumBlocks, kBlockThreads, 0, stream>>>({.values = values.values.data(),
                                                                .num_keys = view_of(values.keys).size,
                                                                .dim = static_cast<std::uint32_t>(dim),
                                                                .sums = sums.data()});
  base::check_launch("sum_squares_kernel");
  add_sums_kernel<<<1, kBlockThreads, 0, stream>>>(sums.data(), sum);
  base::check_launch("add_sums_kernel");
}

}  // namespace headway::embedding
