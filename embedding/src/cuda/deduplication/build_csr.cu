// SPDX-License-Identifier: Apache-2.0

// Second stage of deduplication: the CSR map from segments (unique keys, ranks) to items (batch positions).
//
// Idea: a stable radix sort of the items by segment puts the items of a segment side by side, in ascending order. A
// segment's offset is the position at which its number first appears. The sort looks only at the bits that segments can
// have: for 1,000 keys these are 10 bits, which saves passes.
//
// Example: segments of items 0 to 3 are 0 1 0 2. Sorted segments 0 0 1 2, csr_indices 0 2 1 3, csr_offsets 0 2 3 4.
//
// Invariants: items beyond num_items() have a segment that is not less than any other, so a stable sort leaves them
//  last, and find_csr_offsets_kernel does not look at them.
// Complexity: one radix sort of 32-bit pairs, one pass for the offsets; 4 bytes of scratch memory per item, and CUB's.

#include "cuda/deduplication/steps.hpp"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>

namespace headway::embedding {

namespace {

struct CsrOffsetsArgs {
  std::uint32_t const* sorted;  ///< (items) Segments of the sorted items, ascending.
  DeviceCount num_items;
  DeviceCount num_segments;
  std::uint32_t* csr_offsets;
};

// One thread per item and one for the end. A thread writes the offsets of the segments after its predecessor's segment,
// up to its own. Items of segments 0 0 2, 4 segments: thread 0 sets csr_offsets[0] = 0; thread 2 sets
// csr_offsets[1] = csr_offsets[2] = 2; thread 3, beyond the items, sets csr_offsets[3] = csr_offsets[4] = 3.
__global__ void __launch_bounds__(kBlockThreads) find_csr_offsets_kernel(CsrOffsetsArgs args) {
  std::uint32_t const i = thread_index(), num_items = args.num_items();
  if (i > num_items) return;
  std::uint32_t const first = i == 0 ? 0 : args.sorted[i - 1] + 1;
  std::uint32_t const last = i == num_items ? args.num_segments() : args.sorted[i];
  for (std::uint32_t segment = first; segment <= last; ++segment) args.csr_offsets[segment] = i;
}

/// Sorts the items by segment with a stable radix sort over the bits of `last_segment`.
void sort_by_segment_async(BuildCsrArgs const& args, std::uint32_t* sorted, cudaStream_t stream) {
  std::uint32_t const size = args.num_items.most;
  int const num_bits = std::max<int>(1, std::bit_width(args.last_segment));
  run_with_scratch("cub::DeviceRadixSort", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceRadixSort::SortPairs(scratch, num_bytes, args.segments, sorted, args.in_order, args.csr_indices,
                                           size, 0, num_bits, stream);
  });
}

}  // namespace

void build_csr_async(BuildCsrArgs const& args, cudaStream_t stream) {
  DeviceBuffer<std::uint32_t> const sorted(args.num_items.most, stream);
  if (sorted.size() > 0) sort_by_segment_async(args, sorted.data(), stream);
  find_csr_offsets_kernel<<<num_blocks(std::uint64_t{args.num_items.most} + 1), kBlockThreads, 0, stream>>>(
      {.sorted = sorted.data(),
       .num_items = args.num_items,
       .num_segments = args.num_segments,
       .csr_offsets = args.csr_offsets});
  base::check_launch("find_csr_offsets_kernel");
}

}  // namespace headway::embedding
