#include "cuda/cuda_check.hpp"
#include "cuda/launch.cuh"
#include "cuda/radix_selection.hpp"

#include <cub/block/block_scan.cuh>

#include <algorithm>

namespace headway::embedding {

namespace {

/// The bits that a pass looks at: from the 11 highest of 64 to the 9 lowest.
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

/// Goes on with the digit of the last value that is wanted; for a whole block, when all counts are there. With 3 wanted
/// of digits that came 2, 0 and 5 times it is the third, of which 1 is wanted.
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

// Counts the digits of those values that have the bits known so far; the block that is the last to end chooses.
__global__ void __launch_bounds__(kBlockThreads) select_digit_kernel(PassArgs args) {
  __shared__ std::uint32_t counts[Selection::kNumDigits];
  __shared__ bool is_last;
  auto& selection = *args.selection;
  Selected const before = args.before();
  if (before.num_wanted == 0) return;  // In all blocks.
  for (std::uint32_t d = threadIdx.x; d < Selection::kNumDigits; d += kBlockThreads) counts[d] = 0;
  __syncthreads();
  Digit const digit(args.pass);
  std::uint32_t const num_values = selection.num_values;
  for (std::uint64_t i = thread_number(); i < num_values; i += std::uint64_t{gridDim.x} * kBlockThreads) {
    std::uint64_t const value = args.values[i];
    if ((value & before.known_bits) == before.value) atomicAdd(counts + digit.of(value), 1U);
  }
  __syncthreads();
  for (std::uint32_t d = threadIdx.x; d < Selection::kNumDigits; d += kBlockThreads) {
    if (counts[d] != 0) atomicAdd(selection.counts[args.pass] + d, counts[d]);
  }
  __threadfence();  // Counts come before the number of blocks that are done.
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(selection.num_done_blocks + args.pass, 1U) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();  // Pairs with that of the other blocks.
  choose_digit(args, before);
}

}  // namespace

RadixSelection::RadixSelection(std::size_t most_values, cudaStream_t stream)
    : values_(most_values, stream), selection_(1, stream) {
  check(cudaMemsetAsync(selection_.data(), 0, sizeof(Selection), stream), "cudaMemsetAsync");
}

void RadixSelection::select_async(std::uint32_t const* num_wanted, cudaStream_t stream) const {
  constexpr std::uint32_t kMostBlocks = 512;
  std::uint32_t const blocks = std::clamp(num_blocks(values_.size()), 1U, kMostBlocks);
  for (std::uint32_t pass = 0; pass < Selection::kNumPasses; ++pass) {
    select_digit_kernel<<<blocks, kBlockThreads, 0, stream>>>({values_.data(), num_wanted, selection_.data(), pass});
    check_launch("select_digit_kernel");
  }
}

}  // namespace headway::embedding
