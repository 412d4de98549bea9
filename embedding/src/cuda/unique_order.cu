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
  std::uint32_t const* order;  ///< (unique keys) The old number of each new one.
  std::uint32_t* places;       ///< (unique keys) The new number of each old one.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* counts;
  std::uint32_t* size;
};

// A thread for each key. With the order 2 0 1 the places are 1 2 0.
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

struct NumMembers {
  UniqueView from;
  std::uint32_t const* order;

  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return i < from.size() ? from.begins[order[i] + 1] - from.begins[order[i]] : 0;
  }
};

struct MemberOrderArgs {
  UniqueView from;
  std::uint32_t const* places;  ///< (unique keys) As above.
  std::uint32_t const* begins;  ///< (unique keys + 1) Of the new ones.
  std::uint32_t* numbers;
  std::uint32_t* members;
};

// A thread for each member. Of the keys 7 9 7 members are 0 2 1, and begins 0 2 3. With the order 1 0 they become
// 1 0 2, and 0 1 3: that of thread 1, the second of key 7, goes to 1 + (1 - 0).
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
