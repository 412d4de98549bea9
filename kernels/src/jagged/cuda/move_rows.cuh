#pragma once

#include "headway/kernels/jagged_moves.hpp"
#include "jagged/cuda/warp_rows.cuh"

#include <cstring>

namespace headway::kernels {

inline constexpr std::uint32_t kMostMovedTensors = 64;

/// A tensor of a launch. Vectors are as wide as its rows and addresses allow, at most 16 bytes.
struct MovedVectors {
  void const* source;
  void* out;
  std::int64_t first_warp;  ///< The tensor's share of the launch begins here.
  std::uint32_t vectors_of_row;
  std::uint32_t vector_bytes;
  alignas(16) std::byte fill[16] = {};
};

struct MoveRowsArgs {
  JaggedMove move;
  std::uint32_t num_tensors;
  std::int64_t num_warps;
  MovedVectors tensors[kMostMovedTensors] = {};
};

inline constexpr std::uint32_t kMovedVectorsOfLane = 4;

template <class Vector>
__device__ void move_vectors(JaggedMove const& move, MovedVectors const& tensor, std::int64_t warp) {
  auto const* const source = static_cast<Vector const*>(tensor.source);
  auto* const out = static_cast<Vector*>(tensor.out);
  bool const is_gather = move.direction == JaggedMove::Direction::kGather;
  WarpRows<kMovedVectorsOfLane> const rows{.packed = move.packed,
                                           .num_segments = static_cast<std::uint32_t>(move.num_segments),
                                           .vectors_of_row = tensor.vectors_of_row,
                                           .num_rows = move.num_packed_rows};
  Vector values[kMovedVectorsOfLane];
  std::int64_t to[kMovedVectorsOfLane] = {-1, -1, -1, -1};  // -1: nowhere.
  rows.visit_warp(warp, [&](std::uint32_t i, RowVector const& vector) {
    Range const items = move.placed.order.items(vector.segment);
    expect_on_device(move.placed.has(items), "segments are of items that there are");
    Range const placed = move.placed.rows_of(items);
    std::int64_t const row_on = move.placed_row == JaggedMove::PlacedRow::kFirst ? 0 : vector.row_in_segment;
    std::int64_t const placed_row = placed.begin + row_on;
    bool const is_placed = row_on < placed.size();
    expect_on_device(!is_placed || (0 <= placed_row && placed_row < move.num_placed_rows), "rows are there");
    std::int64_t const packed_at = vector.row * tensor.vectors_of_row + vector.column;
    std::int64_t const placed_at = placed_row * tensor.vectors_of_row + vector.column;
    if (is_placed) {
      values[i] = source[is_gather ? placed_at : packed_at];
    } else {
      memcpy(&values[i], tensor.fill, sizeof(Vector));
    }
    if (is_gather || is_placed) to[i] = is_gather ? packed_at : placed_at;
  });
  // Only now: all loads of a lane are under way before its first store.
#pragma unroll
  for (std::uint32_t i = 0; i < kMovedVectorsOfLane; ++i) {
    if (to[i] >= 0) out[to[i]] = values[i];
  }
}

/// A warp for each 128 vectors of packed rows of a tensor; the tensors' warps one after the other.
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock, 3) move_rows_kernel(__grid_constant__ MoveRowsArgs const args) {
  std::int64_t const warp = std::int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp;
  if (warp >= args.num_warps) return;
  std::uint32_t number = 0;
  while (number + 1 < args.num_tensors && args.tensors[number + 1].first_warp <= warp) ++number;
  MovedVectors const& tensor = args.tensors[number];
  std::int64_t const own_warp = warp - tensor.first_warp;
  switch (tensor.vector_bytes) {
    case 16:
      return move_vectors<uint4>(args.move, tensor, own_warp);
    case 8:
      return move_vectors<std::uint64_t>(args.move, tensor, own_warp);
    case 4:
      return move_vectors<std::uint32_t>(args.move, tensor, own_warp);
    case 2:
      return move_vectors<std::uint16_t>(args.move, tensor, own_warp);
    default:
      return move_vectors<std::uint8_t>(args.move, tensor, own_warp);
  }
}

/// How the rows of a tensor are moved, as the one whose warps begin at `first_warp`.
inline MovedVectors vectors_of(MovedRows const& rows, std::int64_t first_warp) {
  auto const bits = reinterpret_cast<std::uintptr_t>(rows.source) | reinterpret_cast<std::uintptr_t>(rows.out) |
                    static_cast<std::uintptr_t>(rows.row_bytes) | 16;
  auto const vector_bytes = static_cast<std::uint32_t>(bits & (~bits + 1));  // The lowest bit of all.
  MovedVectors vectors{.source = rows.source,
                       .out = rows.out,
                       .first_warp = first_warp,
                       .vectors_of_row = static_cast<std::uint32_t>(rows.row_bytes / vector_bytes),
                       .vector_bytes = vector_bytes};
  std::memcpy(vectors.fill, rows.fill, sizeof(vectors.fill));
  return vectors;
}

/// What one launch takes of `tensors`.
inline MoveRowsArgs move_rows_args(JaggedMove const& move, std::span<MovedRows const> tensors) {
  MoveRowsArgs args{.move = move, .num_tensors = static_cast<std::uint32_t>(tensors.size()), .num_warps = 0};
  for (std::uint32_t i = 0; i < args.num_tensors; ++i) {
    args.tensors[i] = vectors_of(tensors[i], args.num_warps);
    args.num_warps += WarpRows<kMovedVectorsOfLane>::num_warps(move.num_packed_rows, args.tensors[i].vectors_of_row);
  }
  return args;
}

}  // namespace headway::kernels
