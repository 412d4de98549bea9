// SPDX-License-Identifier: Apache-2.0

// Radix selection: finds the k-th least of n 64-bit values. k and n are known to the device only.
//
// Idea: most significant digit first, as in a radix sort, but following only the values that share all digits found so
// far. Six passes take 11 bits each (the last one 9). A pass counts the digits of the remaining values. The last block
// to finish scans the counts and finds the digit in which the k-th value falls; k becomes its rank within that digit.
//
// Example: k = 3, digits of the first pass 0, 0, 2, 2, 2, 2, 2 (counts 2, 0, 5). The third value has digit 2. The next
//   pass looks at the five values with digit 2 and looks for the first of them.
//
// Invariants: after pass p, Selected::value has the highest 11 (p + 1) bits, known_bits masks them, and num_wanted is
//   the rank, from 1, among the values that have these bits. After the last pass, that many equal values are wanted.
//   num_wanted = 0 means that nothing is wanted: all passes return and leave zeros behind.
// Complexity: six passes over the values, each with 2,048 shared counters per block. No value moves.
// Memory order: a block adds its counts, then fences, then adds to num_done_blocks; the block that completes the number
//   fences again before it reads the counts.

#include "cuda/runtime/launch.cuh"
#include "cuda/table/radix_selection.hpp"
#include "headway/base/cuda_check.hpp"

#include <cub/block/block_scan.cuh>

#include <algorithm>

namespace headway::embedding {

namespace {

/// Bits of one pass: pass 0 has the 11 highest of 64 bits, the last pass the 9 lowest.
struct Digit {
  std::uint32_t shift, mask;

  __device__ explicit Digit(std::uint32_t pass) {
    std::uint32_t const end = 64 - pass * Selection::kDigitBits, width = min(end, Selection::kDigitBits);
    shift = end - width;
    mask = (1U << width) - 1;
  }
  [[nodiscard]] __device__ std::uint32_t of(std::uint64_t value) const {
    return static_cast<std::uint32_t>(value >> shift) & mask;
  }
};

struct PassArgs {
  std::uint64_t const* values;
  std::uint32_t const* num_wanted;
  Selection* selection;
  std::uint32_t pass;

  [[nodiscard]] __device__ Selected before() const {
    if (pass > 0) return selection->after[pass - 1];
    return {.value = 0, .known_bits = 0, .num_wanted = min(*num_wanted, selection->num_values)};
  }
};

/// Finds the digit in which the last wanted value falls. The whole block calls it, after all blocks have counted. With
/// num_wanted 3 and counts 2, 0, 5 it is digit 2, of which 1 value is wanted.
__device__ void choose_digit(PassArgs const& args, Selected const& before) {
  using Scan = cub::BlockScan<std::uint32_t, kBlockThreads>;
  constexpr std::uint32_t kOwn = Selection::kNumDigits / kBlockThreads;
  __shared__ typename Scan::TempStorage scratch;
  std::uint32_t counts[kOwn], sum = 0, num_less = 0;
#pragma unroll
  for (std::uint32_t j = 0; j < kOwn; ++j) {
    counts[j] = __ldcg(args.selection->counts[args.pass] + threadIdx.x * kOwn + j);
    sum += counts[j];
  }
  Scan(scratch).ExclusiveSum(sum, num_less);
  if (num_less >= before.num_wanted || num_less + sum < before.num_wanted) return;
  Digit const digit(args.pass);
  std::uint32_t num_wanted = before.num_wanted - num_less;
#pragma unroll
  for (std::uint32_t j = 0; j < kOwn; ++j) {
    if (num_wanted <= counts[j]) {
      args.selection->after[args.pass] = {.value = before.value | std::uint64_t{threadIdx.x * kOwn + j} << digit.shift,
                                          .known_bits = before.known_bits | std::uint64_t{digit.mask} << digit.shift,
                                          .num_wanted = num_wanted};
      return;
    }
    num_wanted -= counts[j];
  }
}

// Counts the digits of the values that have the bits known so far. The last block to finish calls choose_digit().
__global__ void __launch_bounds__(kBlockThreads) select_digit_kernel(PassArgs args) {
  __shared__ std::uint32_t counts[Selection::kNumDigits];
  __shared__ bool is_last;
  auto& selection = *args.selection;
  Selected const before = args.before();
  if (before.num_wanted == 0) return;  // The same in all blocks, so none waits for another.
  for (std::uint32_t d = threadIdx.x; d < Selection::kNumDigits; d += kBlockThreads) counts[d] = 0;
  __syncthreads();
  Digit const digit(args.pass);
  std::uint32_t const num_values = selection.num_values;
  for (std::uint64_t i = thread_index(); i < num_values; i += std::uint64_t{gridDim.x} * kBlockThreads) {
    std::uint64_t const value = args.values[i];
    if ((value & before.known_bits) == before.value) atomicAdd(counts + digit.of(value), 1U);
  }
  __syncthreads();
  for (std::uint32_t d = threadIdx.x; d < Selection::kNumDigits; d += kBlockThreads) {
    if (counts[d] != 0) atomicAdd(selection.counts[args.pass] + d, counts[d]);
  }
  __threadfence();  // Orders the counts before the increment of num_done_blocks.
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(selection.num_done_blocks + args.pass, 1U) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();  // Pairs with the fence of the other blocks.
  choose_digit(args, before);
}

}  // namespace

RadixSelection::RadixSelection(std::size_t most_values, cudaStream_t stream)
    : values_(most_values, stream), selection_(1, stream) {
  base::check_cuda(cudaMemsetAsync(selection_.data(), 0, sizeof(Selection), stream), "cudaMemsetAsync");
}

void RadixSelection::select_async(std::uint32_t const* num_wanted, cudaStream_t stream) const {
  constexpr std::uint32_t kMostBlocks = 512;
  std::uint32_t const blocks = std::clamp(num_blocks(values_.size()), 1U, kMostBlocks);
  for (std::uint32_t pass = 0; pass < Selection::kNumPasses; ++pass) {
    select_digit_kernel<<<blocks, kBlockThreads, 0, stream>>>({values_.data(), num_wanted, selection_.data(), pass});
    base::check_launch("select_digit_kernel");
  }
}

}  // namespace headway::embedding
