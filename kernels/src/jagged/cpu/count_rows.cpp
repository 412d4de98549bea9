#include "jagged/group_rows.hpp"

namespace headway::kernels {

void count_rows(SegmentGroups const& groups) {
  for (std::int64_t group = 0; group < groups.num_groups; ++group) {
    groups.num_rows[group] = rows_of_group(groups, group);
  }
}

}  // namespace headway::kernels
