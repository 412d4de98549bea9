#pragma once

#include "cuda/batch_view.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace headway::embedding {

/// Arguments of group_members_async(). A member has one group. The group of a member beyond num_members() is not less
/// than that of any member before, so that these sort last.
struct GroupingArgs {
  std::uint32_t const* groups;    ///< (members) Group of each member.
  std::uint32_t last_group;       ///< Greatest possible group; its bits bound the radix sort.
  std::uint32_t const* in_order;  ///< (members) 0, 1, 2, ..., written by the kernel that makes `groups`.
  DeviceCount num_members;
  DeviceCount num_groups;
  std::uint32_t* members;  ///< (members) Output: members by group, ascending within each.
  std::uint32_t* begins;   ///< (groups + 1) Output: offset of each group in `members`; groups may be empty.
};

/// Groups members: a stable radix sort, then the boundaries of the groups.
void group_members_async(GroupingArgs const& args, cudaStream_t stream);

}  // namespace headway::embedding
