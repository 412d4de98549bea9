// SPDX-License-Identifier: Apache-2.0

// Checks of segments in host memory, before any row moves. A segment is one or more neighbouring items, and an item is
// the rows of one feature in one sample (jagged_segments.hpp). A wrong offset would otherwise read or write outside a
// tensor. Errors name the segment and its rows.

#include "jagged/cpu/segment_checks.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headway::kernels {

namespace {

constexpr std::int64_t kSegmentsOfTask = 1 << 14;  ///< Segments per task.

/// Rows of a segment, after checking that they exist. @throws std::invalid_argument
Range checked_rows(Segments const& segments, std::uint32_t segment, std::int64_t num_rows) {
  Range const items = segments.order.items(segment);
  if (!segments.has(items)) {
    throw std::invalid_argument("jagged rows: segment " + std::to_string(segment) + " is of the items " +
                                std::to_string(items.begin) + " to " + std::to_string(items.end) + ", and there are " +
                                std::to_string(segments.num_items));
  }
  Range const rows = segments.rows_of(items);
  if (rows.begin < 0 || rows.end < rows.begin || num_rows < rows.end) {
    throw std::invalid_argument("jagged rows: segment " + std::to_string(segment) + " is of the rows " +
                                std::to_string(rows.begin) + " to " + std::to_string(rows.end) + ", and there are " +
                                std::to_string(num_rows));
  }
  return rows;
}

/// Calls `check(range)` for ranges that cover all segment numbers.
template <class Check>
void for_ranges(std::int64_t num_segments, Executor const& executor, Check const& check) {
  executor((num_segments + kSegmentsOfTask - 1) / kSegmentsOfTask, [&](std::int64_t task) {
    check(Range{task * kSegmentsOfTask, std::min((task + 1) * kSegmentsOfTask, num_segments)});
  });
}

}  // namespace

void expect_packed(Segments const& segments, std::int64_t num_segments, std::int64_t num_rows,
                   Executor const& executor) {
  for_ranges(num_segments, executor, [&](Range range) {
    auto segment = static_cast<std::uint32_t>(range.begin);
    // Each task starts with the end of the segment before its range, so gaps between tasks are found too.
    std::int64_t end = segment == 0 ? 0 : checked_rows(segments, segment - 1, num_rows).end;
    for (; segment < range.end; ++segment) {
      Range const rows = checked_rows(segments, segment, num_rows);
      if (rows.begin != end || (segment + 1 == num_segments && rows.end != num_rows)) {
        throw std::invalid_argument("jagged rows: lengths do not add up to the " + std::to_string(num_rows) +
                                    " rows: segment " + std::to_string(segment) + " of " +
                                    std::to_string(num_segments) + " is of the rows " + std::to_string(rows.begin) +
                                    " to " + std::to_string(rows.end));
      }
      end = rows.end;
    }
  });
}

void expect_inside(Segments const& segments, std::int64_t num_segments, std::int64_t num_rows,
                   Executor const& executor) {
  for_ranges(num_segments, executor, [&](Range range) {
    for (auto segment = static_cast<std::uint32_t>(range.begin); segment < range.end; ++segment) {
      static_cast<void>(checked_rows(segments, segment, num_rows));
    }
  });
}

}  // namespace headway::kernels
