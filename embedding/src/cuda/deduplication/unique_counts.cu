// SPDX-License-Identifier: Apache-2.0

// Third stage of deduplication: how many lookups each unique key stands for.
//
// Idea: without Keys::counts it is the number of members, csr_offsets[u + 1] - csr_offsets[u]. With counts, an
// exclusive prefix sum over the counts in the order of `csr_indices` gives each sum as the difference of two entries.
//
// Example: csr_indices 0 1 | 2 with counts 4 5 | 6. The prefix sum is 0 4 9 15: the counts are 9 - 0 and 15 - 9.
//
// Invariants: sums are 64 bits wide and exact; the result saturates at 2^32 - 1.
// Complexity: O(keys), 8 bytes of scratch memory per key if there are counts.

#include "cuda/batch/batch_view.cuh"
#include "cuda/deduplication/steps.hpp"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

namespace headway::embedding {

namespace {

/// Input of the prefix sum: lookups of the key at place `at` of `csr_indices`; 0 beyond the known keys.
struct CountOfMember {
  std::uint32_t const* csr_indices;
  std::uint32_t const* counts;
  DeviceCount num_members;

  __device__ std::uint64_t operator()(std::uint32_t at) const {
    return at < num_members() ? counts[csr_indices[at]] : 0;
  }
};

struct CountArgs {
  std::uint32_t const* csr_offsets;
  std::uint64_t const* counts_before;  ///< (members + 1) Prefix sum of the members' counts; nullptr: one lookup each.
  DeviceCount size;
  std::uint32_t* counts;
};

// One thread per unique key.
__global__ void __launch_bounds__(kBlockThreads) count_keys_kernel(CountArgs args) {
  std::uint32_t const index = thread_index();
  if (index >= args.size()) return;
  std::uint32_t const begin = args.csr_offsets[index], end = args.csr_offsets[index + 1];
  std::uint64_t const count =
      args.counts_before == nullptr ? end - begin : args.counts_before[end] - args.counts_before[begin];
  args.counts[index] = static_cast<std::uint32_t>(min(count, std::uint64_t{0xffffffff}));
}

}  // namespace

void count_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream) {
  auto const size = static_cast<std::uint32_t>(keys.size());
  DeviceBuffer<std::uint64_t> const counts_before(keys.counts.empty() ? 0 : keys.size() + 1, stream);
  if (counts_before.size() > 0) {
    auto const counts = thrust::make_transform_iterator(thrust::make_counting_iterator(std::uint32_t{0}),
                                                        CountOfMember{.csr_indices = unique.csr_indices.data(),
                                                                      .counts = keys.counts.data(),
                                                                      .num_members = {size, keys.num_known}});
    run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
      return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, counts, counts_before.data(), size + 1, stream);
    });
  }
  count_keys_kernel<<<num_blocks(size), kBlockThreads, 0, stream>>>({.csr_offsets = unique.csr_offsets.data(),
                                                                     .counts_before = counts_before.data(),
                                                                     .size = {size, unique.size},
                                                                     .counts = unique.counts.data()});
  base::check_launch("count_keys_kernel");
}

}  // namespace headway::embedding
