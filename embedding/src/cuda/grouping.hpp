#pragma once

#include "cuda/batch_view.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace headway::embedding {

/// Members, each of one group. Those beyond the known ones are in groups that are not less than that of any known one.
struct GroupingArgs {
  std::uint32_t const* groups;    ///< (members)
  std::uint32_t last_group;       ///< None is greater.
  std::uint32_t const* in_order;  ///< (members) Their numbers: 0, 1 and so on, from whoever made `groups`.
  DeviceCount num_members;
  DeviceCount num_groups;  ///< Known members are in these.
  std::uint32_t* members;  ///< (members) Out: their numbers by group, and in each by number.
  std::uint32_t* begins;   ///< (groups + 1) Out: of each one's in `members`; groups may be empty.
};

void group_members_async(GroupingArgs const& args, cudaStream_t stream);

}  // namespace headway::embedding
