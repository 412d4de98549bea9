// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/executor.hpp"
#include "headway/kernels/jagged_segments.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels {

/// Copies segments of rows between a packed tensor, where they follow each other without gaps, and a placed tensor,
/// where they lie anywhere. Permuting, dispatching, combining, transposing, joining, splitting and padding jagged
/// tensors are all such moves.
///
/// Row i of a segment is copied to row i of the same segment in the other tensor. If the placed segment has fewer rows,
/// a gather fills the rest, and a scatter skips it. If it has more, these rows are neither read nor written.
///
/// Example: a gather of segments 2 and 0 from the rows a a | b | c c c. Packed offsets are 0 3 5, placed offsets 0 2 3
/// 6 with the order 2 0 (Segments::outer). The result is c c c | a a.
struct JaggedMove {
  /// kGather copies from the placed to the packed tensor, kScatter the other way.
  enum class Direction : std::uint8_t { kGather, kScatter };
  /// Row of the placed segment that belongs to row i of the packed one.
  enum class PlacedRow : std::uint8_t {
    kSame,   ///< Row i of the packed segment is row i of the placed one.
    kFirst,  ///< All rows of the packed segment are row 0 of the placed one; for a gather only.
  };

  std::int64_t num_segments = 0;  ///< Below 2^31.
  Segments packed{}, placed{};
  std::int64_t num_packed_rows = 0, num_placed_rows = 0;
  Direction direction = Direction::kGather;
  PlacedRow placed_row = PlacedRow::kSame;
};

/// Source and output of one tensor of a move. For a gather `source` is placed and `out` packed; for a scatter the other
/// way.
struct MovedRows {
  void const* source = nullptr;
  void* out = nullptr;
  std::int64_t row_bytes = 0;  ///< From 1, below 2^32.
  std::byte fill[16] = {};     ///< Element that fills missing rows, repeated; its size divides 16.
};

/// Moves rows on the CPU. Cost: each row is read and written once; the offsets of each segment are read once.
/// @throws std::invalid_argument if segments reach beyond the rows, or the packed ones do not cover all packed rows in
/// order
void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors, Executor const& executor);

/// Moves rows on a device, in stream order: one launch for each 64 tensors. Segments that reach beyond the rows
/// raise an assertion on the device. `tensors` may be destroyed after the call.
/// @throws std::invalid_argument if sizes are out of their ranges; std::runtime_error if CUDA refuses the launch
void move_rows_async(JaggedMove const& move, std::span<MovedRows const> tensors, CudaStream stream);

}  // namespace headway::kernels
