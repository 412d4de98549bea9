// SPDX-License-Identifier: Apache-2.0

// Segments of a warp's work, held by its lanes; move_rows.cuh explains the algorithm. Packed rows are those of the
// tensor whose segments follow each other without gaps; placed rows are those of the other tensor of the move
// (JaggedMove).
//
// Loading 32 segments costs one memory latency, and each lane then looks up others by shuffles instead of memory.
// Positions are 32 bits wide and count from the warp's first vector, since 64-bit arithmetic is slow on GPUs.

#pragma once

#include "headway/kernels/jagged_moves.hpp"
#include "jagged/cuda/warp_rows.cuh"

#include <cstdint>

namespace headway::kernels {

/// Packed vectors that a warp moves. Positions count from the first of them.
struct WarpVectors {
  std::int64_t first;
  std::int32_t size;
  std::uint32_t vectors_of_row;
  std::int64_t num_rows;       ///< Number of all packed rows.
  std::uint64_t first_column;  ///< Column of the first vector.

  /// Position where a packed row begins, clamped to the warp's range.
  [[nodiscard]] __device__ std::int32_t position_of(std::int64_t row) const {
    std::int64_t const vector = min(max(row, std::int64_t{0}), num_rows) * vectors_of_row;
    return static_cast<std::int32_t>(min(max(vector - first, std::int64_t{0}), std::int64_t{size}));
  }
  /// Column of the vector at a position.
  [[nodiscard]] __device__ std::uint32_t column_of(std::int32_t position) const {
    std::uint64_t const column = first_column + static_cast<std::uint32_t>(position);
    if (column < vectors_of_row) return static_cast<std::uint32_t>(column);
    // Fits 32 bits, for which division is faster.
    return static_cast<std::uint32_t>(column - vectors_of_row) % vectors_of_row;
  }
};

/// Data about one segment in the registers of a lane. The 32 lanes of a warp hold 32 consecutive segments and exchange
/// them by shuffles.
struct LaneSegment {
  std::int32_t begin, end;  ///< Positions of the segment among the warp's vectors.
  std::int32_t placed_end;  ///< First position without a placed row.
  /// Add to a packed vector to get the placed one; with PlacedRow::kFirst, add to its column.
  std::int64_t placed_shift;
};

/// Loads the lane's segment of 32 from `first_segment` on; the first of them begins at or before `position`. Checks
/// offsets. All lanes call it.
__device__ inline LaneSegment load_lane_segment(JaggedMove const& move, WarpVectors const& vectors,
                                                std::uint32_t first_segment, std::int32_t position) {
  std::uint32_t const lane = threadIdx.x % kWarp, segment = first_segment + lane;
  LaneSegment mine{.begin = vectors.size, .end = vectors.size, .placed_end = 0, .placed_shift = 0};
  if (segment < move.num_segments) {
    Range const items = move.placed.order.items(segment);
    expect_on_device(move.placed.has(items), "segments are of items that there are");
    Range const packed = move.packed.rows(segment), placed = move.placed.rows_of(items);
    bool const is_first = move.placed_row == JaggedMove::PlacedRow::kFirst;
    std::int64_t const num_read = min(is_first ? std::int64_t{1} : packed.size(), placed.size());
    expect_on_device(num_read <= 0 || (0 <= placed.begin && placed.begin <= move.num_placed_rows - num_read),
                     "rows are there");
    std::int64_t const num_filled = is_first && num_read > 0 ? packed.size() : num_read;
    mine = {.begin = vectors.position_of(packed.begin),
            .end = vectors.position_of(packed.end),
            .placed_end = vectors.position_of(packed.begin + num_filled),
            .placed_shift = (placed.begin - (is_first ? 0 : packed.begin)) * vectors.vectors_of_row};
  }
  std::int32_t const end_before = __shfl_up_sync(kAllLanes, mine.end, 1);
  expect_on_device(mine.begin == (lane == 0 ? position : end_before) && mine.begin <= mine.end,
                   "lengths add up to the number of rows");
  return mine;
}

/// The 32 segments of a warp, readable by every lane. All lanes must call its functions together.
class SegmentsOfLanes {
 public:
  __device__ SegmentsOfLanes(LaneSegment const& mine, WarpVectors const& vectors) : mine_(mine) {
    num_begun_ = __popc(__ballot_sync(kAllLanes, mine.begin < vectors.size));
  }

  /// Number of segments that begin within the warp's vectors: those of the first lanes.
  [[nodiscard]] __device__ int size() const { return num_begun_; }
  /// Position behind the last of the 32 segments.
  [[nodiscard]] __device__ std::int32_t end() const { return __shfl_sync(kAllLanes, mine_.end, kWarp - 1); }

  [[nodiscard]] __device__ LaneSegment of_lane(int lane) const {
    return {.begin = __shfl_sync(kAllLanes, mine_.begin, lane),
            .end = __shfl_sync(kAllLanes, mine_.end, lane),
            .placed_end = __shfl_sync(kAllLanes, mine_.placed_end, lane),
            .placed_shift = __shfl_sync(kAllLanes, mine_.placed_shift, lane)};
  }
  /// Segment that contains `position`, which may differ between lanes. Binary search by shuffles.
  [[nodiscard]] __device__ LaneSegment at(std::int32_t position) const {
    int lane = 0;
    for (int step = num_begun_ > 1 ? 1 << (31 - __clz(num_begun_ - 1)) : 0; step > 0; step /= 2) {
      if (__shfl_sync(kAllLanes, mine_.begin, lane + step) <= position) lane += step;
    }
    return of_lane(lane);
  }

 private:
  LaneSegment mine_;
  int num_begun_;
};

}  // namespace headway::kernels
