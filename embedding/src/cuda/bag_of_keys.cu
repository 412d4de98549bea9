#include "cuda/bag_of_keys.hpp"
#include "cuda/cub_scratch.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/launch.cuh"

#include <cub/device/device_scan.cuh>
#include <cuda/functional>

namespace headway::embedding {

namespace {

struct MarkArgs {
  std::int64_t const* offsets;
  std::uint32_t num_bags;
  std::uint32_t* bag_of;  ///< (keys) Zero.
};

// A thread for each bag that writes it at its first key, if it has one. Offsets 0 2 2 5 mark keys as 0 0 2 0 0.
__global__ void __launch_bounds__(kBlockThreads) mark_bags_kernel(MarkArgs args) {
  std::uint32_t const bag = thread_number();
  if (bag >= args.num_bags) return;
  std::int64_t const begin = args.offsets[bag];
  if (begin < args.offsets[bag + 1]) args.bag_of[begin] = bag;
}

}  // namespace

void find_bags_async(std::span<std::int64_t const> offsets, std::span<std::uint32_t> bag_of, cudaStream_t stream) {
  if (bag_of.empty()) return;
  auto const num_bags = static_cast<std::uint32_t>(offsets.size() - 1);
  check(cudaMemsetAsync(bag_of.data(), 0, bag_of.size_bytes(), stream), "cudaMemsetAsync");
  if (num_bags == 0) return;
  mark_bags_kernel<<<num_blocks(num_bags), kBlockThreads, 0, stream>>>(
      {.offsets = offsets.data(), .num_bags = num_bags, .bag_of = bag_of.data()});
  check_launch("mark_bags_kernel");
  // The bag of a key is the last that was marked: 0 0 2 0 0 becomes 0 0 2 2 2.
  run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::InclusiveScan(scratch, num_bytes, bag_of.data(), bag_of.data(), ::cuda::maximum<>{},
                                          static_cast<std::uint32_t>(bag_of.size()), stream);
  });
}

}  // namespace headway::embedding
