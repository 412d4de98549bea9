// SPDX-License-Identifier: Apache-2.0

// Rows of consecutive segments, for both devices: the difference of two offsets, since segments of a group are packed.

#pragma once

#include "headway/kernels/jagged_offsets.hpp"

#include <cstdint>

namespace headway::kernels {

/// Rows of a group; its segments lie one after the other.
HEADWAY_HOST_DEVICE inline std::int64_t rows_of_group(SegmentGroups const& groups, std::int64_t group) {
  if (groups.segments_of_group == 0) return 0;
  auto const first = static_cast<std::uint32_t>(group * groups.segments_of_group);
  auto const last = static_cast<std::uint32_t>((group + 1) * groups.segments_of_group - 1);
  return groups.segments.rows(last).end - groups.segments.begin(first);
}

}  // namespace headway::kernels
