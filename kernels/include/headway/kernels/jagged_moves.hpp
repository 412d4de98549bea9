#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/jagged_segments.hpp"
#include "headway/kernels/run_tasks.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels {

/// Copies segments of rows between memory where they lie in order without gaps (`packed`) and memory where they lie
/// anywhere (`placed`): what permuting, dispatching, combining, transposing, joining, splitting and padding jagged
/// tensors all are.
///
/// Row i of a segment goes to row i of that segment at the other place. Where the placed segment has fewer rows, a
/// gather fills the rest and a scatter leaves it out.
///
/// Example, a gather of the rows a a | b | c c c by the items 2, 0: packed offsets 0 3 5, placed offsets 0 2 3 6 in the
/// order {outer: 2 0}, giving c c c | a a.
struct JaggedMove {
  enum class Direction : std::uint8_t { kGather, kScatter };
  enum class PlacedRow : std::uint8_t {
    kSame,   ///< Row i of the packed segment is row i of the placed one.
    kFirst,  ///< All rows of the packed segment are the first of the placed one; only of a gather.
  };

  std::int64_t num_segments = 0;  ///< Below 2^31.
  Segments packed{}, placed{};
  std::int64_t num_packed_rows = 0, num_placed_rows = 0;
  Direction direction = Direction::kGather;
  PlacedRow placed_row = PlacedRow::kSame;
};

/// Memory that takes part in a move. Of a gather `source` is placed and `out` packed, of a scatter the other way round.
struct MovedRows {
  void const* source = nullptr;
  void* out = nullptr;
  std::int64_t row_bytes = 0;  ///< From 1, below 2^32.
  std::byte fill[16] = {};     ///< What rows are filled with, again and again; an element of a size that divides 16.
};

/// On the CPU. Cost: each row once read and written, and for each segment a look at its offsets.
/// @throws std::invalid_argument if segments reach beyond the rows, or packed ones do not cover theirs in order
void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors, RunTasks const& run_tasks);

/// On a device, in the order of the stream: one launch for up to 64 tensors. Segments that do not fit are an assertion
/// there. `tensors` is not needed any more when it returns.
/// @throws std::invalid_argument if sizes are out of their ranges; std::runtime_error if CUDA refuses the launch
void move_rows_async(JaggedMove const& move, std::span<MovedRows const> tensors, CudaStream stream);

}  // namespace headway::kernels
