// SPDX-License-Identifier: Apache-2.0

// Compile-time shapes of the sm_80 passes.
//
// Example: bfloat16, dim 64, forward. A row has 128 bytes, so kMaxWarps = 2048 / 128 = 16; 4 warps are used and a tile
//  has 64 rows. A block may have 8192 / 128 = 64 rows of the other side. float32, dim 256, backward: rows of 1,024
//  bytes and two operands leave 1 warp with 16 rows, and blocks of 8 rows.

#pragma once

#include "cuda/device.cuh"
#include "cuda/element.cuh"
#include "hstu/cuda/tile/sequence_tile.cuh"
#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Side of the pairs that the rows of a tile belong to.
enum class TileRows : std::uint8_t { kQueries, kKeys };

/// Accumulators of a pass: kP sums P times the other side, kDs sums dS times it. See pass.cuh.
enum class PassAcc : std::uint8_t { kP, kDs, kBoth };

/// Data about a token that the mask and the bias need. Only `token` and `time` are used for keys.
struct TokenInfo {
  std::int32_t begin = 0, length = 0;  ///< Range of keys that a query sees, besides itself.
  std::int32_t token = -1;             ///< Index of the token in its sequence; -1: a query beyond the end.
  SplitTime time;                      ///< Relative to the first key of the sequence; only with a time bias.
};

/// Tile of rows of one head of a sequence.
struct Sm80Tile {
  SequenceView sequence;
  std::int32_t head = 0, first_row = 0, num_rows = 0;  ///< `num_rows`: rows of the sequence from `first_row` on.
  float scale = 1;                                     ///< Factor of the sequence's attention weights.
};

/// Compile-time configuration of a pass. Each warp has 16 rows of the tile; all warps go through blocks of the other
/// side, which have two stages in shared memory. A tile may use 32 KiB for each side.
template <class T, int kDim_, TileRows kRows_, PassAcc kAcc_>
struct Sm80Shape {
  using Element = T;
  static constexpr int kDim = kDim_;  ///< Columns in shared memory and registers; columns that do not exist are 0.
  static constexpr TileRows kRows = kRows_;
  static constexpr bool kAccumulatesP = kAcc_ != PassAcc::kDs;
  static constexpr bool kAccumulatesDs = kAcc_ != PassAcc::kP;
  static constexpr bool kAddsBiasGradients = kAccumulatesDs && kRows == TileRows::kQueries;
  static constexpr bool kIsFloat32 = std::is_same_v<T, float>;

  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T));
  static constexpr int kOwnOperands = kAccumulatesDs ? 2 : 1;
  static constexpr int kMaxWarps = 2048 / (kRowBytes * kOwnOperands);  ///< 32 KiB / 16 rows of a warp = 2048.
  static constexpr int kWarps = kMaxWarps < 4 ? kMaxWarps : 4;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kTileRows = 16 * kWarps;
  static constexpr int kMaxBlockRows = 8192 / kRowBytes;  ///< 32 KiB / (2 stages of 2 operands) = 8192.
  // A thread holds kBlockRows / 2 accumulators of S, and as many of dP in a backward pass.
  static constexpr int kRegistersAllow = kAccumulatesDs ? 32 : 64;
  static constexpr int kBlockRows = kMaxBlockRows < kRegistersAllow ? kMaxBlockRows : kRegistersAllow;

  /// Elements from one row to the next in shared memory. The padding puts 8 consecutive rows into different banks.
  static constexpr int kPitch = kDim + 16 / static_cast<int>(sizeof(T));
  /// Scratch floats for P or dS, which other threads read.
  static constexpr bool kHasScratch = kIsFloat32 || kAddsBiasGradients;
  static constexpr int kScratchPitch = kBlockRows + 4;
};

/// Shared memory of a pass.
template <class Shape>
struct Sm80Shared {
  using T = typename Shape::Element;
  alignas(16) T own[Shape::kOwnOperands][Shape::kTileRows * Shape::kPitch];  ///< Operands of the tile's rows.
  alignas(16) T other[2][2][Shape::kBlockRows * Shape::kPitch];              ///< Other side: by stage, operand.
  alignas(16) float scratch[Shape::kHasScratch ? Shape::kTileRows * Shape::kScratchPitch : 4];
  Sm80Tile tile;
  TokenInfo own_tokens[Shape::kTileRows];
  TokenInfo other_tokens[2][Shape::kBlockRows];
};

/// Dynamic shared memory in bytes: Sm80Shared, then the time table, then each warp's partial gradients of time
/// weights.
template <class Shape>
[[nodiscard]] constexpr std::uint32_t sm80_shared_bytes(HstuBias const& bias) {
  std::uint32_t bytes = sizeof(Sm80Shared<Shape>);
  if (!bias.has_time()) return bytes;
  bytes += TimeTable::size_bytes(bias.num_time_bounds);
  if (Shape::kAddsBiasGradients) bytes += Shape::kWarps * static_cast<std::uint32_t>(bias.num_time_bounds + 1) * 4;
  return bytes;
}

}  // namespace headway::kernels
