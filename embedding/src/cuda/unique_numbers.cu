#include "cuda/batch_view.cuh"
#include "cuda/cub_scratch.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/launch.cuh"
#include "cuda/unique_numbers.hpp"

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <bit>

namespace headway::embedding {

namespace {

constexpr std::uint32_t kEmpty = 0xffffffff;

/// A hash table with linear probing. A slot has the number of a key of the batch, which stands for all that are the
/// same; in the end it is the first of them.
struct FirstKeys {
  KeysView keys;
  std::uint32_t* slots;    ///< (mask + 1) At least twice as many as keys, kEmpty at first.
  std::uint32_t* slot_of;  ///< (keys)
  std::uint32_t mask;

  [[nodiscard]] __device__ std::uint32_t first_of(std::uint32_t i) const { return slots[slot_of[i]]; }

  /// The slot of key `i`, which is not less than the number in it.
  [[nodiscard]] __device__ std::uint32_t put(std::uint32_t i, Key key) const {
    for (auto at = static_cast<std::uint32_t>(hash_of(key).low) & mask;; at = (at + 1) & mask) {
      // Most duplicates find the first here, in L1. It may be an old value, which is of the same key or empty.
      std::uint32_t found = __ldca(&slots[at]);
      if (found == kEmpty) found = atomicCAS(&slots[at], kEmpty, i);
      if (found == kEmpty) return at;
      if (keys.key(found) != key) continue;
      if (i < found) atomicMin(&slots[at], i);
      return at;
    }
  }
};

// A thread for each key. Of the keys 7 9 7 7, whose slots are 2 5 2 2, those of lanes 0, 2 and 3 are the same: lane 0
// puts 0 into slot 2 for all three, and lane 1 puts 1 into slot 5.
__global__ void __launch_bounds__(kBlockThreads) find_first_keys_kernel(FirstKeys firsts) {
  std::uint32_t const i = thread_number();
  bool const is_known = i < firsts.keys.size();
  unsigned const active = __ballot_sync(kAllLanes, is_known);
  if (!is_known) return;
  Key const key = firsts.keys.key(i);
  unsigned same = __match_any_sync(active, key.id);
  if (firsts.keys.tables != nullptr) same &= __match_any_sync(active, key.table);
  // The lowest lane has the lowest number.
  unsigned const leader = static_cast<unsigned>(__ffs(static_cast<int>(same))) - 1;
  std::uint32_t slot = 0;
  if (threadIdx.x % 32 == leader) slot = firsts.put(i, key);
  __syncwarp(active);
  firsts.slot_of[i] = __shfl_sync(active, slot, static_cast<int>(leader));
}

struct IsFirst {
  FirstKeys firsts;

  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return i < firsts.keys.size() && firsts.first_of(i) == i ? 1 : 0;
  }
};

struct NumberArgs {
  FirstKeys firsts;
  std::uint32_t const* firsts_before;  ///< (keys) How many keys before are the first of their kind.
  std::uint64_t* ids;
  std::uint32_t* tables;
  std::uint32_t* numbers;
  std::uint32_t* in_order;
  std::uint32_t* size;
};

// A thread for each key. Of 7 9 7 8 the first ones are 0 1 0 3, before which there are 0 1 - 2: the numbers are 0 1
// 0 2.
__global__ void __launch_bounds__(kBlockThreads) number_keys_kernel(NumberArgs args) {
  auto const& keys = args.firsts.keys;
  std::uint32_t const i = thread_number(), num_keys = keys.size();
  if (i == 0 && num_keys == 0) *args.size = 0;
  if (i >= keys.size.most) return;
  args.in_order[i] = i;
  if (i >= num_keys) {
    args.numbers[i] = keys.size.most - 1;
    return;
  }
  std::uint32_t const first = args.firsts.first_of(i), number = args.firsts_before[first];
  args.numbers[i] = number;
  if (first == i) {
    args.ids[number] = keys.ids[i];
    if (keys.tables != nullptr) args.tables[number] = keys.tables[i];
  }
  if (i == num_keys - 1) *args.size = args.firsts_before[i] + (first == i ? 1 : 0);
}

}  // namespace

void number_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, std::uint32_t* in_order,
                              cudaStream_t stream) {
  auto const size = static_cast<std::uint32_t>(keys.size());
  DeviceBuffer<std::uint32_t> const slots(std::bit_ceil(2 * keys.size()), stream);
  DeviceBuffer<std::uint32_t> const slot_of(size, stream), firsts_before(size, stream);
  FirstKeys const firsts{.keys = view_of(keys),
                         .slots = slots.data(),
                         .slot_of = slot_of.data(),
                         .mask = static_cast<std::uint32_t>(slots.size() - 1)};
  static_assert(kEmpty == 0xffffffff, "all bytes are the same");
  check(cudaMemsetAsync(slots.data(), 0xff, slots.size() * sizeof(std::uint32_t), stream), "cudaMemsetAsync");
  find_first_keys_kernel<<<num_blocks(size), kBlockThreads, 0, stream>>>(firsts);
  check_launch("find_first_keys_kernel");

  auto const is_first =
      thrust::make_transform_iterator(thrust::make_counting_iterator(std::uint32_t{0}), IsFirst{firsts});
  run_with_scratch("cub::DeviceScan", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, is_first, firsts_before.data(), size, stream);
  });
  number_keys_kernel<<<num_blocks(size), kBlockThreads, 0, stream>>>({.firsts = firsts,
                                                                      .firsts_before = firsts_before.data(),
                                                                      .ids = unique.ids.data(),
                                                                      .tables = unique.tables.data(),
                                                                      .numbers = unique.numbers.data(),
                                                                      .in_order = in_order,
                                                                      .size = unique.size});
  check_launch("number_keys_kernel");
}

}  // namespace headway::embedding
