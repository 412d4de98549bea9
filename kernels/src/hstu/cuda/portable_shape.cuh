#pragma once

#include "cuda/device.cuh"
#include "cuda/element.cuh"
#include "hstu/cuda/sequence_tile.cuh"
#include "hstu/cuda/time_table.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// What the rows of a tile are: of those, one side of each pair of query and key.
enum class TileRows : std::uint8_t { kQueries, kKeys };

/// What a pass adds up for each row of its tiles; see portable_pass.cuh.
enum class PassSums : std::uint8_t { kWeights, kGradients, kBoth };

/// What pairs need to know of a token besides its row. Of keys only `token` and `time` are looked at.
struct TokenInfo {
  std::int32_t begin = 0, length = 0;  ///< Which keys a query sees besides itself.
  std::int32_t token = -1;
  SplitTime time;
};

struct PortableTile {
  SequenceView sequence;
  std::int32_t head = 0, first_row = 0, num_rows = 0;  ///< Rows of the sequence from the first.
  float scale = 1;                                     ///< Of weights.
};

/// How a block of threads works on a tile: each warp has 16 rows, and all go through blocks of rows of the other side,
/// of which there are two in shared memory. Tiles are as large as 32 KiB for each side let them be.
template <class T, int kDim_, TileRows kRows_, PassSums kSums_>
struct PortableShape {
  using Element = T;
  static constexpr int kDim = kDim_;  ///< Columns in shared memory and registers; those that do not exist are 0.
  static constexpr TileRows kRows = kRows_;
  static constexpr bool kSumsWeights = kSums_ != PassSums::kGradients;
  static constexpr bool kSumsGradients = kSums_ != PassSums::kWeights;
  static constexpr bool kAddsTables = kSumsGradients && kRows == TileRows::kQueries;
  static constexpr bool kIsFloat32 = std::is_same_v<T, float>;

  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T));
  static constexpr int kOwnOperands = kSumsGradients ? 2 : 1;
  static constexpr int kMostWarps = 2048 / (kRowBytes * kOwnOperands);
  static constexpr int kWarps = kMostWarps < 4 ? kMostWarps : 4;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kTileRows = 16 * kWarps;
  static constexpr int kMostBlockRows = 8192 / kRowBytes;
  static constexpr int kRegistersAllow = kSumsGradients ? 32 : 64;
  static constexpr int kBlockRows = kMostBlockRows < kRegistersAllow ? kMostBlockRows : kRegistersAllow;

  /// Of a row in shared memory: 8 rows one below the other lie in different banks.
  static constexpr int kPitch = kDim + 16 / static_cast<int>(sizeof(T));
  /// Weights of pairs as floats, where they are needed by other threads.
  static constexpr bool kHasScratch = kIsFloat32 || kAddsTables;
  static constexpr int kScratchPitch = kBlockRows + 4;
};

template <class Shape>
struct PortableShared {
  using T = typename Shape::Element;
  alignas(16) T own[Shape::kOwnOperands][Shape::kTileRows * Shape::kPitch];
  alignas(16) T other[2][2][Shape::kBlockRows * Shape::kPitch];  ///< By stage.
  alignas(16) float scratch[Shape::kHasScratch ? Shape::kTileRows * Shape::kScratchPitch : 4];
  PortableTile tile;
  TokenInfo own_tokens[Shape::kTileRows];
  TokenInfo other_tokens[2][Shape::kBlockRows];
};

/// Behind PortableShared: the table of times, then sums of the gradients of its weights by each warp.
template <class Shape>
[[nodiscard]] constexpr std::uint32_t portable_shared_bytes(HstuBias const& bias) {
  std::uint32_t bytes = sizeof(PortableShared<Shape>);
  if (!bias.has_time()) return bytes;
  bytes += TimeTable::size_bytes(bias.num_time_bounds);
  if (Shape::kAddsTables) bytes += Shape::kWarps * static_cast<std::uint32_t>(bias.num_time_bounds + 1) * 4;
  return bytes;
}

}  // namespace headway::kernels
