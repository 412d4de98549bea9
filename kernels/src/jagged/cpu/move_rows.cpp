// SPDX-License-Identifier: Apache-2.0

// Jagged row moves on the CPU (JaggedMove). A move copies segments of rows between a packed tensor, in which they
// follow each other without gaps, and a placed tensor, in which they lie anywhere.
//
// Idea: packed rows are cut into chunks of about 128 KiB. A task finds the first segment of its chunk by binary search
// and copies segment by segment with memcpy.
// Invariants: everything is checked before the first row is written. Each output row has one task.
// Complexity: one read and one write per row, and one look at each segment.

#include "headway/kernels/jagged_moves.hpp"
#include "jagged/cpu/row_chunks.hpp"
#include "jagged/cpu/segment_checks.hpp"
#include "jagged/expect_sizes.hpp"

#include <algorithm>
#include <cstring>

namespace headway::kernels {

namespace {

std::byte* at(void* memory, std::int64_t bytes) { return static_cast<std::byte*>(memory) + bytes; }
std::byte const* at(void const* memory, std::int64_t bytes) { return static_cast<std::byte const*>(memory) + bytes; }

/// Fills bytes with the repeated pattern. A pattern of equal bytes takes memset().
void fill_bytes(std::byte* out, std::int64_t num_bytes, std::byte const (&pattern)[16]) {
  if (std::ranges::all_of(pattern, [&](std::byte each) { return each == pattern[0]; })) {
    std::memset(out, static_cast<int>(pattern[0]), static_cast<std::size_t>(num_bytes));
    return;
  }
  for (std::int64_t i = 0; i < num_bytes; i += 16) {
    std::memcpy(out + i, pattern, static_cast<std::size_t>(std::min<std::int64_t>(num_bytes - i, 16)));
  }
}

/// Moves the rows of one tensor for a part of a segment.
/// @param placed rows of the whole segment in the placed tensor
void move_part(JaggedMove const& move, MovedRows const& rows, RowPart const& segment_part, Range placed) {
  Range const part = segment_part.rows;
  std::int64_t const size = rows.row_bytes;
  if (move.placed_row == JaggedMove::PlacedRow::kFirst) {
    for (std::int64_t row = part.begin; row < part.end; ++row) {
      if (placed.size() == 0) {
        fill_bytes(at(rows.out, row * size), size, rows.fill);
      } else {
        std::memcpy(at(rows.out, row * size), at(rows.source, placed.begin * size), static_cast<std::size_t>(size));
      }
    }
    return;
  }
  // Rows from `missing` on do not exist in the placed segment: they are filled (gather) or skipped (scatter).
  std::int64_t const segment_begin = segment_part.segment_begin;
  std::int64_t const missing = std::clamp(segment_begin + placed.size(), part.begin, part.end);
  std::int64_t const num_bytes = (missing - part.begin) * size;
  std::int64_t const packed_at = part.begin * size, placed_at = (placed.begin + part.begin - segment_begin) * size;
  bool const is_gather = move.direction == JaggedMove::Direction::kGather;
  if (num_bytes > 0) {
    std::memcpy(at(rows.out, is_gather ? packed_at : placed_at), at(rows.source, is_gather ? placed_at : packed_at),
                static_cast<std::size_t>(num_bytes));
  }
  if (is_gather && missing < part.end) {
    fill_bytes(at(rows.out, missing * size), (part.end - missing) * size, rows.fill);
  }
}

/// Checks everything before the first row is moved. @throws std::invalid_argument
void expect_fitting(JaggedMove const& move, std::span<MovedRows const> tensors, Executor const& executor) {
  expect_sizes(move, tensors);
  expect_packed(move.packed, move.num_segments, move.num_packed_rows, executor);
  expect_inside(move.placed, move.num_segments, move.num_placed_rows, executor);
}

}  // namespace

/// Cuts the packed rows into chunks of bytes (RowChunks) and lets tasks copy them segment by segment.
void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors, Executor const& executor) {
  expect_fitting(move, tensors, executor);
  std::int64_t row_bytes = 0;
  for (auto const& tensor : tensors) row_bytes += tensor.row_bytes;
  RowChunks const chunks(tensors.empty() ? 0 : move.num_packed_rows, row_bytes);
  executor(chunks.count(), [&](std::int64_t chunk) {
    for_each_part(move.packed, move.num_segments, chunks.rows(chunk), [&](RowPart const& part) {
      Range const placed = move.placed.rows(part.segment);
      for (auto const& tensor : tensors) move_part(move, tensor, part, placed);
    });
  });
}

}  // namespace headway::kernels
