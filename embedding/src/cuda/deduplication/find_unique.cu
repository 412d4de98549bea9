// SPDX-License-Identifier: Apache-2.0

// First stage of deduplication: finds the first occurrence of each key, and numbers the unique keys.
//
// Idea: a hash table with linear probing. A slot holds a batch position, which stands for all positions with that key.
// A thread claims an empty slot with compare-and-swap, and lowers the position in the slot of its key with atomicMin.
// At the end, the slot of a key holds its first position. Equal keys of a warp go through one leader lane. An exclusive
// prefix sum over "is a first position" then numbers the unique keys in order of first occurrence.
//
// Example: batch 7 9 7 8. First positions 0 1 0 3; the prefix sum at those is 0, 1, 2: inverse_indices 0 1 0 2.
//
// Invariants: a slot never changes its key, and its position only decreases. So a stale L1 line shows either an empty
//   slot, which the compare-and-swap then corrects, or a position of the same key.
//   The result does not depend on the order of threads: the minimum is unique.
// Complexity: O(1) expected probes per key, since at most half the slots are used; two 4-byte buffers per key besides.

#include "cuda/batch/batch_view.cuh"
#include "cuda/deduplication/steps.hpp"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <bit>

namespace headway::embedding {

namespace {

constexpr std::uint32_t kEmpty = 0xffffffff;  ///< Slot without a key.

/// Hash table from keys to their first batch position.
struct FirstKeys {
  KeysView keys;
  std::uint32_t* slots;    ///< (mask + 1) Batch positions; at least twice as many slots as keys, kEmpty at first.
  std::uint32_t* slot_of;  ///< (keys) Slot of each key.
  std::uint32_t mask;

  /// First position of the key at position `i`, once all keys are in the table.
  [[nodiscard]] __device__ std::uint32_t first_of(std::uint32_t i) const { return slots[slot_of[i]]; }

  /// Puts position `i` into the slot of its key. @returns the slot, whose position is then at most `i`
  [[nodiscard]] __device__ std::uint32_t put(std::uint32_t i, Key key) const {
    for (auto at = static_cast<std::uint32_t>(hash_of(key).low) & mask;; at = (at + 1) & mask) {
      // Most duplicates end here, in L1. A stale value is empty or an older position of the same key.
      std::uint32_t found = __ldca(&slots[at]);
      if (found == kEmpty) found = atomicCAS(&slots[at], kEmpty, i);
      if (found == kEmpty) return at;
      if (keys.key(found) != key) continue;
      if (i < found) atomicMin(&slots[at], i);
      return at;
    }
  }
};

// One thread per key. Keys 7 9 7 7 with slots 2 5 2 2: lanes 0, 2 and 3 have the same key, so lane 0 puts position 0
// into slot 2 for all three. Lane 1 puts position 1 into slot 5.
__global__ void __launch_bounds__(kBlockThreads) find_first_keys_kernel(FirstKeys firsts) {
  std::uint32_t const i = thread_index();
  bool const is_known = i < firsts.keys.size();
  unsigned const active = __ballot_sync(kAllLanes, is_known);
  if (!is_known) return;
  Key const key = firsts.keys.key(i);
  // Frequent keys repeat within a warp. One lane acts for all of them, which saves atomics on the same slot.
  unsigned same = __match_any_sync(active, key.id);
  if (firsts.keys.tables != nullptr) same &= __match_any_sync(active, key.table);
  // The lowest lane has the lowest position.
  unsigned const leader = static_cast<unsigned>(__ffs(static_cast<int>(same))) - 1;
  std::uint32_t slot = 0;
  if (threadIdx.x % 32 == leader) slot = firsts.put(i, key);
  __syncwarp(active);
  firsts.slot_of[i] = __shfl_sync(active, slot, static_cast<int>(leader));
}

/// Input of the prefix sum: 1 if position `i` is the first of its key.
struct IsFirst {
  FirstKeys firsts;

  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return i < firsts.keys.size() && firsts.first_of(i) == i ? 1 : 0;
  }
};

/// Arguments of number_keys_kernel().
struct NumberArgs {
  FirstKeys firsts;
  std::uint32_t const* firsts_before;  ///< (keys) First positions before each position.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* inverse_indices;
  std::uint32_t* in_order;  ///< (keys) Written: 0, 1, 2, ..., the input of the sort that follows.
  std::uint32_t* size;
};

// One thread per key. The first position of a key also writes its id and table.
__global__ void __launch_bounds__(kBlockThreads) number_keys_kernel(NumberArgs args) {
  auto const& keys = args.firsts.keys;
  std::uint32_t const i = thread_index(), num_keys = keys.size();
  if (i == 0 && num_keys == 0) *args.size = 0;
  // keys.size.most is the number that the host knows, an upper bound; num_keys is the number on the device.
  if (i >= keys.size.most) return;
  args.in_order[i] = i;
  if (i >= num_keys) {
    args.inverse_indices[i] = keys.size.most - 1;
    return;
  }
  std::uint32_t const first = args.firsts.first_of(i), index = args.firsts_before[first];
  args.inverse_indices[i] = index;
  if (first == i) {
    args.ids[index] = keys.ids[i];
    if (keys.tables != nullptr) args.tables[index] = keys.tables[i];
  }
  if (i == num_keys - 1) *args.size = args.firsts_before[i] + (first == i ? 1 : 0);
}

}  // namespace

void find_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, std::uint32_t* in_order,
                            cudaStream_t stream) {
  auto const size = static_cast<std::uint32_t>(keys.size());
  // A power of two, so that the slot of a hash is a mask, and at least twice the keys, so that probes stay short.
  DeviceBuffer<std::uint32_t> const slots(std::bit_ceil(2 * keys.size()), stream);
  DeviceBuffer<std::uint32_t> const slot_of(size, stream), firsts_before(size, stream);
  FirstKeys const firsts{.keys = view_of(keys),
                         .slots = slots.data(),
                         .slot_of = slot_of.data(),
                         .mask = static_cast<std::uint32_t>(slots.size() - 1)};
  static_assert(kEmpty == 0xffffffff, "all bytes are the same");
  base::check_cuda(cudaMemsetAsync(slots.data(), 0xff, slots.size() * sizeof(std::uint32_t), stream),
                   "cudaMemsetAsync");
  find_first_keys_kernel<<<num_blocks(size), kBlockThreads, 0, stream>>>(firsts);
  base::check_launch("find_first_keys_kernel");

  auto const is_first =
      thrust::make_transform_iterator(thrust::make_counting_iterator(std::uint32_t{0}), IsFirst{firsts});
  run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, is_first, firsts_before.data(), size, stream);
  });
  number_keys_kernel<<<num_blocks(size), kBlockThreads, 0, stream>>>({.firsts = firsts,
                                                                      .firsts_before = firsts_before.data(),
                                                                      .ids = unique.ids.data(),
                                                                      .tables = unique.tables.data(),
                                                                      .inverse_indices = unique.inverse_indices.data(),
                                                                      .in_order = in_order,
                                                                      .size = unique.size});
  base::check_launch("number_keys_kernel");
}

}  // namespace headway::embedding
