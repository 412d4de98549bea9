// Permutes unique keys, for example into the order of their owner ranks.
//
// Idea: `order` gives the old number of each new key, and a kernel inverts it (`places`). A prefix sum over the member
// counts in the new order gives the new `begins`. Each member then moves to the new begin of its key plus its offset
// within the key.
//
// Example: keys 7 9 7, members 0 2 | 1, begins 0 2 3, order 1 0. New keys 9 7, members 1 | 0 2, begins 0 1 3.
//   Batch position 2, the second member of key 7, moves from place 1 to 1 + (1 - 0) = 2.
//
// Invariants: members stay ascending within each key. `order` must be a permutation; nothing checks that on the device.
// Complexity: O(keys), 4 bytes of scratch memory per key.

#include "cuda/batch_view.cuh"
#include "cuda/cub_scratch.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/launch.cuh"
#include "cuda/unique_order.hpp"
#include "cuda/unique_view.cuh"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

namespace headway::embedding {

namespace {

struct KeyOrderArgs {
  KeysView from;
  std::uint32_t const* order;  ///< (unique keys) Old number of each new key.
  std::uint32_t* places;       ///< (unique keys) New number of each old key.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* counts;
  std::uint32_t* size;
};

// One thread per unique key. Order 2 0 1 gives places 1 2 0.
__global__ void __launch_bounds__(kBlockThreads) reorder_keys_kernel(KeyOrderArgs args) {
  auto const& from = args.from;
  std::uint32_t const i = thread_number(), size = from.size();
  if (i == 0) *args.size = size;
  if (i >= size) return;
  std::uint32_t const number = args.order[i];
  args.places[number] = i;
  args.ids[i] = from.ids[number];
  if (from.tables != nullptr) args.tables[i] = from.tables[number];
  args.counts[i] = from.counts[number];
}

/// Input of the prefix sum: number of members of new key `i`.
struct NumMembers {
  UniqueView from;
  std::uint32_t const* order;

  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return i < from.size() ? from.begins[order[i] + 1] - from.begins[order[i]] : 0;
  }
};

struct MemberOrderArgs {
  UniqueView from;
  std::uint32_t const* places;  ///< (unique keys) New number of each old key.
  std::uint32_t const* begins;  ///< (unique keys + 1) New begins.
  std::uint32_t* numbers;
  std::uint32_t* members;
};

// One thread per member.
__global__ void __launch_bounds__(kBlockThreads) reorder_members_kernel(MemberOrderArgs args) {
  auto const& from = args.from;
  std::uint32_t const at = thread_number();
  if (at >= from.num_known()) return;
  std::uint32_t const key = from.members[at], old_number = from.numbers[key], number = args.places[old_number];
  args.numbers[key] = number;
  args.members[args.begins[number] + (at - from.begins[old_number])] = key;
}

}  // namespace

void reorder_unique_keys_async(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                               CudaUniqueKeys const& reordered, cudaStream_t stream) {
  UniqueView const from(unique);
  auto const num_keys = static_cast<std::uint32_t>(unique.numbers.size());
  DeviceBuffer<std::uint32_t> const places(num_keys, stream);
  reorder_keys_kernel<<<num_blocks(std::uint64_t{num_keys} + 1), kBlockThreads, 0, stream>>>(
      {.from = view_of(unique.keys()),
       .order = order.data(),
       .places = places.data(),
       .ids = reordered.ids.data(),
       .tables = reordered.tables.data(),
       .counts = reordered.counts.data(),
       .size = reordered.size});
  check_launch("reorder_keys_kernel");

  auto const num_members = thrust::make_transform_iterator(thrust::make_counting_iterator(std::uint32_t{0}),
                                                           NumMembers{.from = from, .order = order.data()});
  run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, num_members, reordered.begins.data(), num_keys + 1,
                                         stream);
  });
  if (num_keys == 0) return;
  reorder_members_kernel<<<num_blocks(num_keys), kBlockThreads, 0, stream>>>({.from = from,
                                                                              .places = places.data(),
                                                                              .begins = reordered.begins.data(),
                                                                              .numbers = reordered.numbers.data(),
                                                                              .members = reordered.members.data()});
  check_launch("reorder_members_kernel");
}

}  // namespace headway::embedding
