// SPDX-License-Identifier: Apache-2.0

// Visits all buckets of some stripes of a key index: the scan behind eviction, expiry, lists and counts.

#pragma once

#include "cuda/index/index_view.cuh"
#include "cuda/runtime/launch.cuh"

#include <algorithm>
#include <cstdint>

namespace headway::embedding {

// blockIdx.y is the stripe; its blocks stride over the buckets. Example: two stripes of 512 and 1,024 buckets. Blocks
// (0, 0) and (1, 0) visit the first stripe, blocks (0, 1) to (3, 1) the second one.
template <class Visit>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_bucket_kernel(StripeView const* stripes, std::uint32_t first_stripe, __grid_constant__ Visit const visit) {
  std::uint32_t const index = first_stripe + blockIdx.y;
  StripeView const stripe = stripes[index];
  std::uint64_t const step = std::uint64_t{gridDim.x} * kBlockThreads;
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * kBlockThreads; first <= stripe.mask; first += step) {
    std::uint64_t const i = first + threadIdx.x;
    visit(index, i <= stripe.mask ? stripe.buckets + i : nullptr);
  }
}

/// Calls `visit(stripe, bucket)` for each bucket, one thread per bucket. All threads of a block call it equally often,
/// so it may be block-collective: threads beyond the stripe pass nullptr.
template <class Visit>
void for_each_bucket_async(StripeRange const& stripes, Visit visit, cudaStream_t stream, char const* name) {
  constexpr std::uint32_t kMostBlocks = 4096;  // More than a device can run at a time.
  dim3 const grid(std::min(num_blocks(stripes.most_buckets), kMostBlocks / stripes.count), stripes.count);
  for_each_bucket_kernel<<<grid, kBlockThreads, 0, stream>>>(stripes.views, stripes.first, visit);
  base::check_launch(name);
}

}  // namespace headway::embedding
