#pragma once

#include "cuda/wgmma.cuh"
#include "hstu/cuda/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// How a block of threads works on a tile of queries: one warpgroup brings tiles, and each of two computes 64 rows;
/// with a bias a fourth finds that of times.
template <int kDim_, bool kHasBias_>
struct HopperForwardShape {
  static constexpr int kDim = kDim_;
  static constexpr bool kHasBias = kHasBias_;
  static constexpr int kConsumers = 2;  ///< Warpgroups.
  static constexpr int kThreads = 128 * (1 + kConsumers + (kHasBias ? 1 : 0));
  static constexpr int kBlockQueries = 64 * kConsumers;
  /// As many as registers and shared memory let be: of dim 256 the latter leaves no room for a table of times
  /// beside 80.
  static constexpr int kBlockKeys = kDim < 256 ? 128 : kHasBias ? 64 : 80;
  static constexpr int kKeyStages = 2;
  static constexpr int kBiasStages = kDim < 256 ? 4 : 2;  ///< What a bias needs is prepared ahead.
  static constexpr int kTimeStages = kDim < 256 ? 2 : 1;  ///< Time biases are found ahead.
  static constexpr int kTileStages = 2;                   ///< What is said of a tile of queries is known a tile ahead.
  /// With two the next queries come while the last products with the present ones run. Where there is no room for both,
  /// a bias needs it more.
  static constexpr int kQueryStages = kDim < 128 || (kDim == 128 && !kHasBias) ? 2 : 1;
  /// Warpgroups take turns, so that one computes weights while the other has the matrix units.
  static constexpr bool kTakesTurns = kDim < 256;

  /// Of each thread; 64 K in all.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = kHasBias ? 208 : 232;
  static constexpr int kFinderRegisters = 512 - 2 * kConsumerRegisters - kProducerRegisters;  ///< Of biases.

  using QueryTile = SwizzledTile<kBlockQueries, kDim>;
  using KeyTile = SwizzledTile<kBlockKeys, kDim>;

  static constexpr std::uint32_t kKeysAt = kQueryStages * QueryTile::kBytes;
  static constexpr std::uint32_t kValuesAt = kKeysAt + kKeyStages * KeyTile::kBytes;
  static constexpr std::uint32_t kStateAt = kValuesAt + kKeyStages * KeyTile::kBytes;
};

}  // namespace headway::kernels
