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

struct CountOfMember {
  std::uint32_t const* members;
  std::uint32_t const* counts;
  DeviceCount num_members;

  __device__ std::uint64_t operator()(std::uint32_t at) const { return at < num_members() ? counts[members[at]] : 0; }
};

struct CountArgs {
  std::uint32_t const* begins;
  std::uint64_t const* counts_before;  ///< (members + 1) Sums of the counts of members; none: each counts once.
  DeviceCount size;
  std::uint32_t* counts;
};

// A thread for each unique key. Those of members 0 1 and 2, with counts 4 5 6: before them are 0 4 9 15, so that their
// counts are 9 - 0 and 15 - 9.
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
