// SPDX-License-Identifier: Apache-2.0

// Checks of sizes that need no look at offsets, for both devices. Limits keep segment numbers in 32 bits.

#pragma once

#include "headway/kernels/jagged_moves.hpp"
#include "headway/kernels/jagged_sums.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace headway::kernels {

inline void expect(bool is_good, char const* what) {
  if (!is_good) throw std::invalid_argument(what);
}

inline void expect_segments(std::int64_t num_segments, std::int64_t num_rows) {
  expect(0 <= num_segments && num_segments < std::numeric_limits<std::int32_t>::max(),
         "jagged rows: there must be fewer than 2^31 segments");
  expect(num_segments > 0 || num_rows == 0, "jagged rows: there are rows, but no segments of them");
}

inline void expect_sizes(JaggedMove const& move, std::span<MovedRows const> tensors) {
  expect_segments(move.num_segments, move.num_packed_rows);
  expect(move.direction == JaggedMove::Direction::kGather || move.placed_row == JaggedMove::PlacedRow::kSame,
         "jagged rows: a scatter cannot have all rows of a segment at one place");
  for (auto const& rows : tensors) {
    expect(0 < rows.row_bytes && rows.row_bytes <= std::numeric_limits<std::uint32_t>::max(),
           "jagged rows: a row must have from 1 to 2^32 - 1 bytes");
  }
}

inline void expect_sizes(JaggedRows const& rows) { expect_segments(rows.num_samples, rows.num_rows); }

inline void expect_sizes(CopiedItems const& items) {
  expect_segments(items.num_features * items.num_samples, items.num_rows);
}

}  // namespace headway::kernels
