// SPDX-License-Identifier: Apache-2.0

// Offsets of jagged items (the rows of one feature in one sample) on the CPU: prefix sums of the lengths before and
// after a move, and rows of groups of segments. One thread is enough: a batch has far fewer items than rows.

#include "headway/kernels/jagged_offsets.hpp"
#include "jagged/group_rows.hpp"

namespace headway::kernels {

namespace {

/// Exclusive prefix sum of lengths. @returns where the next offsets go
template <class Length>
std::int64_t* exclusive_scan(void const* lengths, std::int64_t size, std::int64_t* offsets) {
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    offsets[i] = offset;
    offset += static_cast<Length const*>(lengths)[i];
  }
  offsets[size] = offset;
  return offsets + size + 1;
}

template <class Length>
void find(MovedLengths const& lengths) {
  auto* const after = exclusive_scan<Length>(lengths.before, lengths.num_before, lengths.offsets);
  exclusive_scan<Length>(lengths.after, lengths.num_after, after);
}

}  // namespace

void find_offsets(MovedLengths const& lengths) {
  if (lengths.type == MovedLengths::LengthType::kInt32) return find<std::int32_t>(lengths);
  find<std::int64_t>(lengths);
}

void count_rows(SegmentGroups const& groups) {
  for (std::int64_t group = 0; group < groups.num_groups; ++group) {
    groups.num_rows[group] = rows_of_group(groups, group);
  }
}

}  // namespace headway::kernels
