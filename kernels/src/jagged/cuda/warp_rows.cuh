// SPDX-License-Identifier: Apache-2.0

// Work of warps on jagged rows: a fixed number of vectors each, and searches for the segments that these belong to.
//
// Example: rows of 4 vectors, 2 vectors per lane. A warp has 64 vectors, that is 16 rows. With segments of 10, 0 and 30
//  rows, warp 0 has rows 0 to 15: find_segment() gives segment 0 for its first row, find_last_segment() segment 2 for
//  its last. Each lane then searches between these two only.
//
// Searches: a binary search would take log2(n) dependent loads. find_last() lets all 32 lanes probe at once and counts
//  the hits by a ballot, so it takes log32(n) steps: 3 instead of 15 for 32,768 segments.

#pragma once

// Both nvcc and tests that run kernels on the CPU include this file, so it includes no CUDA header.

#include "headway/kernels/jagged_segments.hpp"
#include "jagged/cuda/device_expect.cuh"

#include <cstdint>

namespace headway::kernels {

inline constexpr std::uint32_t kWarp = 32, kWarpsOfBlock = 8, kAllLanes = 0xffffffff;

/// Largest number in [first, end) for which `is_before(number)` holds. It must hold for `first` and, if for a number,
/// for all smaller ones. All lanes call it; each step probes 32 numbers, so it takes log32(end - first) steps.
template <class IsBefore>
[[nodiscard]] __device__ std::uint32_t find_last(std::uint32_t first, std::uint32_t end, IsBefore const& is_before) {
  while (end - first > 1) {
    std::uint32_t const step = (end - first + kWarp - 1) / kWarp;
    std::uint32_t const probe = first + (threadIdx.x % kWarp) * step;
    bool const holds = probe == first || (probe < end && is_before(probe));
    std::uint32_t const last = static_cast<std::uint32_t>(__popc(__ballot_sync(kAllLanes, holds))) - 1;
    first += last * step;
    end = min(first + step, end);
  }
  return first;
}

/// Segment in [first, end) that contains `row`: the last one that begins at or before it. All lanes call it.
[[nodiscard]] __device__ inline std::uint32_t find_segment(Segments const& packed, std::int64_t row,
                                                           std::uint32_t first, std::uint32_t end) {
  std::int64_t const rows_of_each = packed.rows_of_each();
  if (rows_of_each > 0) return static_cast<std::uint32_t>(min(row / rows_of_each, std::int64_t{end} - 1));
  return find_last(first, end, [&](std::uint32_t segment) { return packed.begin(segment) <= row; });
}

/// Position of a vector of a row.
struct RowVector {
  std::uint32_t segment = 0;
  std::uint32_t column = 0;  ///< Counted in vectors.
  std::int64_t row = 0;      ///< Index among all packed rows.
  std::int64_t row_in_segment = 0;
};

/// Work of a warp: `kVectorsOfLane` vectors per lane; neighbouring lanes have neighbouring vectors. Work is cut by
/// packed vectors, never by segments, so a long segment uses as many warps as it needs.
template <std::uint32_t kVectorsOfLane>
struct WarpRows {
  static constexpr std::uint32_t kVectors = kWarp * kVectorsOfLane;

  Segments const& packed;  ///< In order, without gaps.
  std::uint32_t num_segments, vectors_of_row;
  std::int64_t num_rows;

  [[nodiscard]] static std::int64_t num_warps(std::int64_t num_rows, std::int64_t vectors_of_row) {
    return (num_rows * vectors_of_row + kVectors - 1) / kVectors;
  }

  /// Segment that contains `row`, searched from segment `first` on. Usually it is among the next 32, which one vote
  /// tells.
  [[nodiscard]] __device__ std::uint32_t find_last_segment(std::int64_t row, std::uint32_t first) const {
    std::uint32_t const probe = first + 1 + threadIdx.x % kWarp;
    bool const is_before = probe < num_segments && packed.begin(probe) <= row;
    std::uint32_t const num_before = static_cast<std::uint32_t>(__popc(__ballot_sync(kAllLanes, is_before)));
    return num_before < kWarp ? first + num_before : find_segment(packed, row, first + kWarp, num_segments);
  }

  /// Calls `visit(vector)` for each existing vector of the lane.
  /// @param warp index of the warp over all rows
  template <class Visit>
  __device__ void visit_warp(std::int64_t warp, Visit const& visit) const {
    std::int64_t const first_vector = warp * kVectors, num_vectors = num_rows * vectors_of_row;
    std::int64_t const last_vector = min(first_vector + kVectors, num_vectors) - 1;
    std::int64_t const first_row = first_vector / vectors_of_row;
    std::uint32_t const first_segment = find_segment(packed, first_row, 0, num_segments);
    std::uint32_t const last_segment = find_last_segment(last_vector / vectors_of_row, first_segment);

    // 64-bit division happens once per warp: a lane's distance from the warp's first row fits 32 bits.
    auto const first_column = static_cast<std::uint32_t>(first_vector - first_row * vectors_of_row);
#pragma unroll
    for (std::uint32_t i = 0; i < kVectorsOfLane; ++i) {
      std::uint32_t const distance = i * kWarp + threadIdx.x % kWarp;
      if (first_vector + distance > last_vector) return;
      auto const [rows_on, column] = split(first_column, distance);
      std::int64_t const row = first_row + rows_on;
      std::uint32_t const segment = packed.segment_of(row, first_segment, last_segment + 1);
      Range const rows = packed.rows(segment);
      expect_on_device(rows.begin <= row && row < rows.end, "lengths add up to the number of rows");
      visit(RowVector{.segment = segment, .column = column, .row = row, .row_in_segment = row - rows.begin});
    }
  }

 private:
  struct RowAndColumn {
    std::uint32_t row, column;
  };
  /// Row and column of a vector that is `distance` vectors behind the warp's first.
  [[nodiscard]] __device__ RowAndColumn split(std::uint32_t first_column, std::uint32_t distance) const {
    std::uint64_t const position = std::uint64_t{first_column} + distance;
    if (position < vectors_of_row) return {0, static_cast<std::uint32_t>(position)};
    // Only reached if a row is shorter than the warp's range, or the next row begins in it.
    auto const past = static_cast<std::uint32_t>(position - vectors_of_row);
    std::uint32_t const rows_on = past / vectors_of_row;
    return {1 + rows_on, past - rows_on * vectors_of_row};
  }
};

}  // namespace headway::kernels
