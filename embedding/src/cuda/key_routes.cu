#include "cuda/batch_view.cuh"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/grouping.hpp"
#include "cuda/key_routes.hpp"
#include "cuda/launch.cuh"
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
  std::uint32_t const i = thread_number();
  if (i >= args.keys.size.most) return;
  args.in_order[i] = i;
  bool const is_known = i < args.keys.size();
  args.owners[i] = is_known ? owner_of(virtual_bucket_of(hash_of(args.keys.key(i))), args.num_ranks) : args.num_ranks;
}

struct RankCountsArgs {
  std::uint32_t const* begins;  ///< (ranks + 1)
  std::uint32_t num_ranks;
  std::int64_t* counts;
};

// One thread per rank. Begins 0 3 3 5 give counts 3 0 2.
__global__ void __launch_bounds__(kBlockThreads) count_keys_of_ranks_kernel(RankCountsArgs args) {
  std::uint32_t const rank = thread_number();
  if (rank < args.num_ranks) args.counts[rank] = args.begins[rank + 1] - args.begins[rank];
}

}  // namespace

void route_keys_async(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts,
                      cudaStream_t stream) {
  KeysView const batch = view_of(keys);
  auto const num_ranks = static_cast<std::uint32_t>(counts.size());
  DeviceBuffer<std::uint32_t> const owners(keys.size(), stream), in_order(keys.size(), stream),
      begins(counts.size() + 1, stream);
  if (!order.empty()) {
    find_owners_kernel<<<num_blocks(keys.size()), kBlockThreads, 0, stream>>>(
        {.keys = batch, .num_ranks = num_ranks, .owners = owners.data(), .in_order = in_order.data()});
    check_launch("find_owners_kernel");
  }
  group_members_async({.groups = owners.data(),
                       .last_group = num_ranks,
                       .in_order = in_order.data(),
                       .num_members = batch.size,
                       .num_groups = {num_ranks},
                       .members = order.data(),
                       .begins = begins.data()},
                      stream);
  count_keys_of_ranks_kernel<<<num_blocks(num_ranks), kBlockThreads, 0, stream>>>(
      {.begins = begins.data(), .num_ranks = num_ranks, .counts = counts.data()});
  check_launch("count_keys_of_ranks_kernel");
}

}  // namespace headway::embedding
