// SPDX-License-Identifier: Apache-2.0

// Work sharing for jagged rows on the CPU: chunks of equally many rows, whatever the segments. A chunk may hold a
// part of one long segment or thousands of short ones; for_each_part() visits the parts.
//
// Example: segments of 3, 0 and 5 rows, chunk of rows 2 to 6. The parts are row 2 of segment 0, and rows 3 to 5 of
// segment 2, whose first row is 3. Segment 1 is empty and is not visited.

#pragma once

#include "headway/kernels/executor.hpp"
#include "headway/kernels/jagged_segments.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Cuts rows into chunks of about kChunkBytes, so large that the cost of handing them out does not matter.
class RowChunks {
 public:
  RowChunks(std::int64_t num_rows, std::int64_t row_bytes)
      : num_rows_(num_rows),
        rows_of_chunk_(std::max<std::int64_t>(kChunkBytes / std::max<std::int64_t>(row_bytes, 1), 1)) {}

  [[nodiscard]] std::int64_t count() const { return (num_rows_ + rows_of_chunk_ - 1) / rows_of_chunk_; }
  [[nodiscard]] Range rows(std::int64_t chunk) const {
    return {chunk * rows_of_chunk_, std::min((chunk + 1) * rows_of_chunk_, num_rows_)};
  }

 private:
  static constexpr std::int64_t kChunkBytes = std::int64_t{128} << 10;  ///< Bytes per chunk.

  std::int64_t num_rows_, rows_of_chunk_;
};

/// Consecutive rows of one segment.
struct RowPart {
  std::uint32_t segment;
  std::int64_t segment_begin;  ///< First row of the segment.
  Range rows;
};

/// Calls `visit(part)` for each segment that has some of `rows`, with the rows that it has.
/// @param packed segments in order, without gaps
template <class Visit>
void for_each_part(Segments const& packed, std::int64_t num_segments, Range rows, Visit const& visit) {
  std::uint32_t segment = packed.segment_of(rows.begin, 0, static_cast<std::uint32_t>(num_segments));
  for (std::int64_t row = rows.begin; row < rows.end; ++segment) {
    Range const all = packed.rows(segment);
    std::int64_t const end = std::min(all.end, rows.end);
    if (end > row) visit(RowPart{.segment = segment, .segment_begin = all.begin, .rows = {row, end}});
    row = std::max(row, end);
  }
}

}  // namespace headway::kernels
