#include "cuda/cub_scratch.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/grouping.hpp"
#include "cuda/launch.cuh"

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>

namespace headway::embedding {

namespace {

struct BeginsArgs {
  std::uint32_t const* sorted;  ///< (members) Groups of the sorted members, ascending.
  DeviceCount num_members;
  DeviceCount num_groups;
  std::uint32_t* begins;
};

// One thread per member and one for the end. A thread writes the begins of the groups after its predecessor's group, up
// to its own. Members of groups 0 0 2, 4 groups: thread 0 sets begins[0] = 0; thread 2 sets begins[1] = begins[2] = 2;
// thread 3, beyond the members, sets begins[3] = begins[4] = 3.
__global__ void __launch_bounds__(kBlockThreads) find_begins_kernel(BeginsArgs args) {
  std::uint32_t const i = thread_number(), num_members = args.num_members();
  if (i > num_members) return;
  std::uint32_t const first = i == 0 ? 0 : args.sorted[i - 1] + 1;
  std::uint32_t const last = i == num_members ? args.num_groups() : args.sorted[i];
  for (std::uint32_t group = first; group <= last; ++group) args.begins[group] = i;
}

/// Sorts the members by group with a stable radix sort over the bits of `last_group`.
void sort_members_async(GroupingArgs const& args, std::uint32_t* sorted, cudaStream_t stream) {
  std::uint32_t const size = args.num_members.most;
  int const num_bits = std::max<int>(1, std::bit_width(args.last_group));
  run_with_scratch("cub::DeviceRadixSort", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceRadixSort::SortPairs(scratch, num_bytes, args.groups, sorted, args.in_order, args.members, size,
                                           0, num_bits, stream);
  });
}

}  // namespace

void group_members_async(GroupingArgs const& args, cudaStream_t stream) {
  DeviceBuffer<std::uint32_t> const sorted(args.num_members.most, stream);
  if (sorted.size() > 0) sort_members_async(args, sorted.data(), stream);
  find_begins_kernel<<<num_blocks(std::uint64_t{args.num_members.most} + 1), kBlockThreads, 0, stream>>>(
      {.sorted = sorted.data(), .num_members = args.num_members, .num_groups = args.num_groups, .begins = args.begins});
  check_launch("find_begins_kernel");
}

}  // namespace headway::embedding
