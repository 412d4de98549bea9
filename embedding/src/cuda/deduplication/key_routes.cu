// SPDX-License-Identifier: Apache-2.0

// Routing on the GPU: groups the keys of a batch by owner rank, as routing.cpp does on the CPU.
//
// Idea: the owner of a key, the rank that stores its row, is a segment in the sense of build_csr.cu. The CSR map from
// ranks to batch positions is then the order in which to send, and the differences of its offsets are the numbers of
// keys per rank.
//
// Example: owners 1 0 2 0 of 3 ranks. order 1 3 0 2, csr_offsets 0 2 3 4, counts 2 1 1.
//
// Invariants: `order` is a permutation of the batch, also if only some keys are known: the rest has owner `num_ranks`,
//  comes last and is in no count.

#include "cuda/batch/batch_view.cuh"
#include "cuda/deduplication/steps.hpp"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"
#include "headway/embedding/routing.hpp"

namespace headway::embedding {

namespace {

struct OwnersArgs {
  KeysView keys;
  std::uint32_t num_ranks;
  std::uint32_t* owners;    ///< (keys) Owner rank; `num_ranks` for keys beyond Keys::num_known.
  std::uint32_t* in_order;  ///< (keys) 0, 1, 2, ...
};

// One thread per key.
__global__ void __launch_bounds__(kBlockThreads) find_owners_kernel(OwnersArgs args) {
  std::uint32_t const i = thread_index();
  if (i >= args.keys.size.most) return;
  args.in_order[i] = i;
  bool const is_known = i < args.keys.size();
  args.owners[i] = is_known ? owner_of(virtual_bucket_of(hash_of(args.keys.key(i))), args.num_ranks) : args.num_ranks;
}

struct RankCountsArgs {
  std::uint32_t const* csr_offsets;  ///< (ranks + 1)
  std::uint32_t num_ranks;
  std::int64_t* counts;
};

// One thread per rank. csr_offsets 0 3 3 5 give counts 3 0 2.
__global__ void __launch_bounds__(kBlockThreads) count_keys_of_ranks_kernel(RankCountsArgs args) {
  std::uint32_t const rank = thread_index();
  if (rank < args.num_ranks) args.counts[rank] = args.csr_offsets[rank + 1] - args.csr_offsets[rank];
}

}  // namespace

void route_keys_async(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts,
                      cudaStream_t stream) {
  KeysView const batch = view_of(keys);
  auto const num_ranks = static_cast<std::uint32_t>(counts.size());
  DeviceBuffer<std::uint32_t> const owners(keys.size(), stream), in_order(keys.size(), stream),
      csr_offsets(counts.size() + 1, stream);
  if (!order.empty()) {
    find_owners_kernel<<<num_blocks(keys.size()), kBlockThreads, 0, stream>>>(
        {.keys = batch, .num_ranks = num_ranks, .owners = owners.data(), .in_order = in_order.data()});
    base::check_launch("find_owners_kernel");
  }
  build_csr_async({.segments = owners.data(),
                   .last_segment = num_ranks,
                   .in_order = in_order.data(),
                   .num_items = batch.size,
                   .num_segments = {num_ranks},
                   .csr_indices = order.data(),
                   .csr_offsets = csr_offsets.data()},
                  stream);
  count_keys_of_ranks_kernel<<<num_blocks(num_ranks), kBlockThreads, 0, stream>>>(
      {.csr_offsets = csr_offsets.data(), .num_ranks = num_ranks, .counts = counts.data()});
  base::check_launch("count_keys_of_ranks_kernel");
}

}  // namespace headway::embedding
