#include "cuda/bag_of_keys.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/launch.cuh"

namespace headway::embedding {

namespace {

struct BagArgs {
  std::int64_t const* offsets;
  std::uint32_t num_bags;
  std::uint32_t* bag_of;
  std::uint32_t num_keys;
};

// One thread per key: binary search for the last bag that begins at or before the key. With offsets 0 2 2 5, the bags
// of the keys are 0 0 2 2 2. Threads of a warp take nearly the same path.
__global__ void __launch_bounds__(kBlockThreads) find_bags_kernel(BagArgs args) {
  std::uint32_t const key = thread_number();
  if (key >= args.num_keys) return;
  std::uint32_t bag = 0, end = args.num_bags;
  while (end - bag > 1) {
    std::uint32_t const middle = bag + (end - bag) / 2;
    (__ldg(args.offsets + middle) <= key ? bag : end) = middle;
  }
  args.bag_of[key] = bag;
}

}  // namespace

void find_bags_async(std::span<std::int64_t const> offsets, std::span<std::uint32_t> bag_of, cudaStream_t stream) {
  if (bag_of.empty()) return;
  find_bags_kernel<<<num_blocks(bag_of.size()), kBlockThreads, 0, stream>>>(
      {.offsets = offsets.data(),
       .num_bags = static_cast<std::uint32_t>(offsets.size() - 1),
       .bag_of = bag_of.data(),
       .num_keys = static_cast<std::uint32_t>(bag_of.size())});
  check_launch("find_bags_kernel");
}

}  // namespace headway::embedding
