// SPDX-License-Identifier: Apache-2.0
#pragma once

// Jagged row moves on a device (JaggedMove): permute, dispatch, combine, transpose, join, split, pad and
// spread (PlacedRow::kFirst). A move copies segments of rows between a packed tensor, in which they follow each other
// without gaps, and a placed tensor, in which they lie anywhere. A gather writes the packed one, a scatter the placed
// one.
//
// Idea: work is cut by packed vectors (up to 16 bytes), never by segments. A warp takes 128 to 1,024 consecutive
// vectors, whichever segments they belong to. It finds its first segment by a search with 32 probes at once. Each lane
// then loads one of 32 segments, and lanes exchange them by shuffles. If segments are long (64 vectors on average), the
// warp copies them one by one, and all lanes use the same segment. If they are short, each lane searches the 32
// segments for its own vector, so that no lane is idle.
//
// Example: rows of 64 bytes are 4 vectors. Segments of 3 and 40 rows; warp 0 has vectors 0 to 127, that is rows 0 to
// 31. Segment 0 has positions 0 to 11, segment 1 positions 12 to 127. Their average is 64, so they are copied one by
// one.
//
// Invariants: each output vector has one lane. A lane loads kVectorsOfTurn vectors before it stores the first. Offsets
// are checked by the lane that uses them, before any load through them.
// Complexity: every row is read and written once; log32(segments) probes per warp, and one look at each segment.

#include "headway/kernels/jagged_moves.hpp"
#include "jagged/cuda/lane_segments.cuh"

#include <algorithm>
#include <cstring>

namespace headway::kernels {

inline constexpr std::uint32_t kMaxMovedTensors = 64;

/// Tensor of a launch. Vectors are as wide as rows and addresses allow, at most 16 bytes.
struct MovedVectors {
  void const* source;
  void* out;
  std::uint32_t vectors_of_row;
  std::uint32_t vector_bytes;
  std::int64_t first_warp = 0;  ///< First warp of the launch that works on this tensor.
  alignas(16) std::byte fill[16] = {};
};

/// Kernel arguments of one launch.
struct MoveRowsArgs {
  JaggedMove move;
  std::uint32_t num_tensors;
  std::int64_t vectors_of_warp = 0, num_warps = 0;
  MovedVectors tensors[kMaxMovedTensors] = {};
};

/// Vectors that a lane moves at a time; all are loaded before the first is stored.
inline constexpr std::int32_t kVectorsOfTurn = 4;
/// Average number of vectors per segment from which segments are copied one by one.
inline constexpr std::int32_t kLongSegment = 64;
/// Turns per warp (of kWarp * kVectorsOfTurn vectors). A warp has one turn until there are kFillingWarps warps per
/// multiprocessor: three times as many as run at once, so that the last wave is seldom half empty. Larger moves use
/// more turns, up to kMaxTurns.
inline constexpr std::int64_t kFillingWarps = 96, kMaxTurns = 8;

/// Move of one warp's vectors of one tensor.
template <class Vector>
class MoveOfWarp {
 public:
  __device__ MoveOfWarp(JaggedMove const& move, MovedVectors const& tensor, WarpVectors const& vectors)
      : move_(move),
        vectors_(vectors),
        source_(static_cast<Vector const*>(tensor.source)),
        out_(static_cast<Vector*>(tensor.out)) {
    memcpy(&fill_, tensor.fill, sizeof(Vector));
  }

  __device__ void run() const {
    auto const num_segments = static_cast<std::uint32_t>(move_.num_segments);
    if (vectors_.first == 0) expect_on_device(move_.packed.begin(0) == 0, "lengths add up to the number of rows");
    std::uint32_t segment = find_segment(move_.packed, vectors_.first / vectors_.vectors_of_row, 0, num_segments);
    for (std::int32_t position = 0; position < vectors_.size;) {
      SegmentsOfLanes const segments(load_lane_segment(move_, vectors_, segment, position), vectors_);
      std::int32_t const end = segments.end();
      move_segments(segments, position, end);
      segment += kWarp;
      if (end == position) {  // All 32 segments are empty, and many more may be: search.
        segment = find_segment(move_.packed, (vectors_.first + end) / vectors_.vectors_of_row, segment, num_segments);
      }
      position = end;
    }
  }

 private:
  static constexpr std::int32_t kLanes = kWarp;
  static constexpr std::int64_t kNowhere = -1;

  /// Moves positions `begin` to `end`: long segments one by one, since all lanes then use the same segment; short ones
  /// together, so that no lane is idle.
  __device__ void move_segments(SegmentsOfLanes const& segments, std::int32_t begin, std::int32_t end) const {
    if (move_.placed_row == JaggedMove::PlacedRow::kFirst) {
      move_positions(begin, end, [&](std::int32_t position) {
        return shifted(segments.at(position), position, vectors_.column_of(position));
      });
    } else if (end - begin < segments.size() * kLongSegment) {
      move_positions(begin, end, [&](std::int32_t position) {
        return shifted(segments.at(position), position, vectors_.first + position);
      });
    } else {
      for (int lane = 0; lane < segments.size(); ++lane) {
        LaneSegment const segment = segments.of_lane(lane);
        move_positions(segment.begin, segment.end,
                       [&](std::int32_t position) { return shifted(segment, position, vectors_.first + position); });
      }
    }
  }

  /// Placed vector of a position, or kNowhere if the segment has no placed row for it.
  [[nodiscard]] __device__ static std::int64_t shifted(LaneSegment const& segment, std::int32_t position,
                                                       std::int64_t unshifted) {
    return position < segment.placed_end ? segment.placed_shift + unshifted : kNowhere;
  }

  /// Moves positions in turns. All lanes call it.
  /// @param placed_at (position) -> placed vector, or kNowhere
  template <class PlacedAt>
  __device__ void move_positions(std::int32_t begin, std::int32_t end, PlacedAt const& placed_at) const {
    bool const is_gather = move_.direction == JaggedMove::Direction::kGather;
    for (std::int32_t turn = begin / kLanes * kLanes; turn < end; turn += kLanes * kVectorsOfTurn) {
      Vector values[kVectorsOfTurn];
      std::int64_t to[kVectorsOfTurn];
#pragma unroll
      for (std::int32_t i = 0; i < kVectorsOfTurn; ++i) {
        std::int32_t const position = turn + i * kLanes + static_cast<std::int32_t>(threadIdx.x % kWarp);
        std::int64_t const packed = vectors_.first + position, placed = placed_at(position);
        bool const is_here = begin <= position && position < end;
        to[i] = is_here ? (is_gather ? packed : placed) : kNowhere;
        values[i] = fill_;
        if (is_here && placed != kNowhere) values[i] = source_[is_gather ? placed : packed];
      }
#pragma unroll
      for (std::int32_t i = 0; i < kVectorsOfTurn; ++i) {
        if (to[i] != kNowhere) out_[to[i]] = values[i];
      }
    }
  }

  JaggedMove const& move_;
  WarpVectors const& vectors_;
  Vector const* source_;
  Vector* out_;
  Vector fill_;
};

/// Kernel: a warp per `vectors_of_warp` packed vectors of a tensor. The warps of the tensors follow each other.
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock, 4) move_rows_kernel(__grid_constant__ MoveRowsArgs const args) {
  std::int64_t const warp = std::int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp;
  if (warp >= args.num_warps) return;
  std::uint32_t tensor_index = 0;
  while (tensor_index + 1 < args.num_tensors && args.tensors[tensor_index + 1].first_warp <= warp) ++tensor_index;
  MovedVectors const& tensor = args.tensors[tensor_index];
  std::int64_t const first = (warp - tensor.first_warp) * args.vectors_of_warp;
  std::int64_t const num_left = args.move.num_packed_rows * tensor.vectors_of_row - first;
  WarpVectors const vectors{.first = first,
                            .size = static_cast<std::int32_t>(min(args.vectors_of_warp, num_left)),
                            .vectors_of_row = tensor.vectors_of_row,
                            .num_rows = args.move.num_packed_rows,
                            .first_column = static_cast<std::uint64_t>(first % tensor.vectors_of_row)};
  switch (tensor.vector_bytes) {
    case 16:
      return MoveOfWarp<uint4>(args.move, tensor, vectors).run();
    case 8:
      return MoveOfWarp<std::uint64_t>(args.move, tensor, vectors).run();
    case 4:
      return MoveOfWarp<std::uint32_t>(args.move, tensor, vectors).run();
    case 2:
      return MoveOfWarp<std::uint16_t>(args.move, tensor, vectors).run();
    default:
      return MoveOfWarp<std::uint8_t>(args.move, tensor, vectors).run();
  }
}

/// Chooses the width of vectors for a tensor.
inline MovedVectors vectors_of(MovedRows const& rows) {
  auto const bits = reinterpret_cast<std::uintptr_t>(rows.source) | reinterpret_cast<std::uintptr_t>(rows.out) |
                    static_cast<std::uintptr_t>(rows.row_bytes) | 16;
  // Largest power of two, up to 16, that divides all of them.
  auto const vector_bytes = static_cast<std::uint32_t>(bits & (~bits + 1));
  MovedVectors vectors{.source = rows.source,
                       .out = rows.out,
                       .vectors_of_row = static_cast<std::uint32_t>(rows.row_bytes / vector_bytes),
                       .vector_bytes = vector_bytes};
  std::memcpy(vectors.fill, rows.fill, sizeof(vectors.fill));
  return vectors;
}

/// Arguments of one launch for `tensors`, at most kMaxMovedTensors.
inline MoveRowsArgs move_rows_args(JaggedMove const& move, std::span<MovedRows const> tensors,
                                   int num_multiprocessors) {
  constexpr std::int64_t kTurnVectors = kWarp * kVectorsOfTurn;
  MoveRowsArgs args{.move = move, .num_tensors = static_cast<std::uint32_t>(tensors.size())};
  std::int64_t num_turns = 0;
  for (std::uint32_t i = 0; i < args.num_tensors; ++i) {
    args.tensors[i] = vectors_of(tensors[i]);
    num_turns += move.num_packed_rows * args.tensors[i].vectors_of_row / kTurnVectors;
  }
  args.vectors_of_warp =
      std::clamp<std::int64_t>(num_turns / (kFillingWarps * num_multiprocessors), 1, kMaxTurns) * kTurnVectors;
  for (std::uint32_t i = 0; i < args.num_tensors; ++i) {
    std::int64_t const num_vectors = move.num_packed_rows * args.tensors[i].vectors_of_row;
    args.tensors[i].first_warp = args.num_warps;
    args.num_warps += (num_vectors + args.vectors_of_warp - 1) / args.vectors_of_warp;
  }
  return args;
}

}  // namespace headway::kernels
