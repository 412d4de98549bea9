// Third stage of deduplication: how many lookups each unique key stands for.
//
// Idea: without Keys::counts it is the number of members, begins[u + 1] - begins[u]. With counts, an exclusive prefix
// sum over the counts in the order of `members` gives each sum as the difference of two entries.
//
// Example: members 0 1 | 2 with counts 4 5 | 6. The prefix sum is 0 4 9 15: the counts are 9 - 0 and 15 - 9.
//
// Invariants: sums are 64 bits wide and exact; the result saturates at 2^32 - 1.
// Complexity: O(keys), 8 bytes of scratch memory per key if there are counts.

#include "cuda/batch_view.cuh"
#include "cuda/cub_scratch.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/launch.cuh"
#include "cuda/unique_counts.hpp"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

namespace headway::embedding {

namespace {

/// Input of the prefix sum: lookups of the key at place `at` of `members`; 0 beyond the known keys.
struct CountOfMember {
  std::uint32_t const* members;
  std::uint32_t const* counts;
  DeviceCount num_members;

  __device__ std::uint64_t operator()(std::uint32_t at) const { return at < num_members() ? counts[members[at]] : 0; }
};

struct CountArgs {
  std::uint32_t const* begins;
  std::uint64_t const* counts_before;  ///< (members + 1) Prefix sum of the members' counts; nullptr: one lookup each.
  DeviceCount size;
  std::uint32_t* counts;
};

// One thread per unique key.
__global__ void __launch_bounds__(kBlockThreads) count_keys_kernel(CountArgs args) {
  std::uint32_t const number = thread_number();
  if (number >= args.size()) return;
  std::uint32_t const begin = args.begins[number], end = args.begins[number + 1];
  std::uint64_t const count =
      args.counts_before == nullptr ? end - begin : args.counts_before[end] - args.counts_before[begin];
  args.counts[number] = static_cast<std::uint32_t>(min(count, std::uint64_t{0xffffffff}));
}

}  // namespace

void count_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream) {
  auto const size = static_cast<std::uint32_t>(keys.size());
  DeviceBuffer<std::uint64_t> const counts_before(keys.counts.empty() ? 0 : keys.size() + 1, stream);
  if (counts_before.size() > 0) {
    auto const counts = thrust::make_transform_iterator(
        thrust::make_counting_iterator(std::uint32_t{0}),
        CountOfMember{
            .members = unique.members.data(), .counts = keys.counts.data(), .num_members = {size, keys.num_known}});
    run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
      return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, counts, counts_before.data(), size + 1, stream);
    });
  }
  count_keys_kernel<<<num_blocks(size), kBlockThreads, 0, stream>>>({.begins = unique.begins.data(),
                                                                     .counts_before = counts_before.data(),
                                                                     .size = {size, unique.size},
                                                                     .counts = unique.counts.data()});
  check_launch("count_keys_kernel");
}

}  // namespace headway::embedding
