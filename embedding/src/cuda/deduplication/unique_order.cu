// SPDX-License-Identifier: Apache-2.0

// Permutes unique keys, for example into the order of their owner ranks.
//
// Idea: the members of a unique key u are its batch positions, csr_indices[csr_offsets[u]] to before
// csr_indices[csr_offsets[u + 1]].
// `order` maps the new index of each key to its old index; a kernel inverts it (`places`). An exclusive prefix sum over
// the numbers of members, in the new order, gives the new `csr_offsets`. Each member then moves to the new offset of
// its key plus its offset within the key.
//
// Example: keys 7 9 7, csr_indices 0 2 | 1, csr_offsets 0 2 3, order 1 0. New keys 9 7, csr_indices 1 | 0 2,
// csr_offsets 0 1 3.
//   Batch position 2, the second member of key 7, moves from csr_indices[1] to csr_indices[1 + (1 - 0)].
//
// Invariants: members stay ascending within each key. `order` must be a permutation; nothing checks that on the device.
// Inputs and outputs do not overlap.
// Complexity: O(keys of the batch). Scratch memory: 4 bytes per key of the batch, and that of the prefix sum.

#include "cuda/batch/batch_view.cuh"
#include "cuda/deduplication/steps.hpp"
#include "cuda/deduplication/unique_view.cuh"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

namespace headway::embedding {

namespace {

struct KeyOrderArgs {
  KeysView from;
  std::uint32_t const* order;  ///< (unique keys) Old index of each key, by new index.
  std::uint32_t* places;       ///< (unique keys) New index of each key, by old index.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* counts;
  std::uint32_t* size;
};

// One thread per unique key. Order 2 0 1 gives places 1 2 0.
__global__ void __launch_bounds__(kBlockThreads) reorder_keys_kernel(KeyOrderArgs args) {
  auto const& from = args.from;
  std::uint32_t const i = thread_index(), size = from.size();
  if (i == 0) *args.size = size;
  if (i >= size) return;
  std::uint32_t const index = args.order[i];
  args.places[index] = i;
  args.ids[i] = from.ids[index];
  if (from.tables != nullptr) args.tables[i] = from.tables[index];
  args.counts[i] = from.counts[index];
}

/// Input of the prefix sum: number of members of the key with new index `i`; 0 beyond the last unique key.
struct NumMembers {
  UniqueView from;
  std::uint32_t const* order;

  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return i < from.size() ? from.csr_offsets[order[i] + 1] - from.csr_offsets[order[i]] : 0;
  }
};

struct MemberOrderArgs {
  UniqueView from;
  std::uint32_t const* places;       ///< (unique keys) New index of each key, by old index.
  std::uint32_t const* csr_offsets;  ///< (unique keys + 1) New CSR offsets.
  std::uint32_t* inverse_indices;
  std::uint32_t* csr_indices;
};

// One thread per member, which moves it and sets the unique key of its batch position.
__global__ void __launch_bounds__(kBlockThreads) reorder_members_kernel(MemberOrderArgs args) {
  auto const& from = args.from;
  std::uint32_t const at = thread_index();
  if (at >= from.num_known()) return;
  std::uint32_t const position = from.csr_indices[at], old_index = from.inverse_indices[position];
  std::uint32_t const index = args.places[old_index];
  args.inverse_indices[position] = index;
  args.csr_indices[args.csr_offsets[index] + (at - from.csr_offsets[old_index])] = position;
}

}  // namespace

void reorder_unique_keys_async(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                               CudaUniqueKeys const& reordered, cudaStream_t stream) {
  UniqueView const from(unique);
  auto const num_keys = static_cast<std::uint32_t>(unique.inverse_indices.size());
  DeviceBuffer<std::uint32_t> const places(num_keys, stream);
  // One thread more than keys, since thread 0 writes the number of keys for an empty batch too.
  reorder_keys_kernel<<<num_blocks(std::uint64_t{num_keys} + 1), kBlockThreads, 0, stream>>>(
      {.from = view_of(unique.keys()),
       .order = order.data(),
       .places = places.data(),
       .ids = reordered.ids.data(),
       .tables = reordered.tables.data(),
       .counts = reordered.counts.data(),
       .size = reordered.size});
  base::check_launch("reorder_keys_kernel");

  auto const num_members = thrust::make_transform_iterator(thrust::make_counting_iterator(std::uint32_t{0}),
                                                           NumMembers{.from = from, .order = order.data()});
  run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, num_members, reordered.csr_offsets.data(), num_keys + 1,
                                         stream);
  });
  if (num_keys == 0) return;
  reorder_members_kernel<<<num_blocks(num_keys), kBlockThreads, 0, stream>>>(
      {.from = from,
       .places = places.data(),
       .csr_offsets = reordered.csr_offsets.data(),
       .inverse_indices = reordered.inverse_indices.data(),
       .csr_indices = reordered.csr_indices.data()});
  base::check_launch("reorder_members_kernel");
}

}  // namespace headway::embedding
