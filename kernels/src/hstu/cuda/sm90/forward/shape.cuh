// SPDX-License-Identifier: Apache-2.0

// Compile-time shapes of the forward kernel on sm_90a, and the layout of its shared memory.
//
// Registers: a multiprocessor has 65,536, and a block of 512 threads 128 per thread on average. setmaxnreg moves them
// between warpgroups: with a bias 40 + 2 * 208 + 56 = 512 = 4 * 128.
//
// Shared memory, dim 128 without a bias: 2 stages of Q (32 KiB each), 2 of K and 2 of V (32 KiB each) are 192 of 227
// KiB.

#pragma once

#include "cuda/wgmma.cuh"
#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Compile-time configuration of the forward kernel: one producer warpgroup, two consumers with 64 rows each, and with
/// a bias one warpgroup that looks up time biases.
template <int kDim_, bool kHasBias_>
struct Sm90ForwardShape {
  static constexpr int kDim = kDim_;
  static constexpr bool kHasBias = kHasBias_;
  static constexpr int kConsumers = 2;  ///< Consumer warpgroups.
  static constexpr int kThreads = 128 * (1 + kConsumers + (kHasBias ? 1 : 0));
  static constexpr int kBlockQueries = 64 * kConsumers;
  /// Keys per block, as many as registers and shared memory allow. For dim 256, a time table does not fit beside 80.
  static constexpr int kBlockKeys = kDim < 256 ? 128 : kHasBias ? 64 : 80;
  static constexpr int kKeyStages = 2;
  static constexpr int kBiasStages = kDim < 256 ? 4 : 2;  ///< Stages of bias data (BlockTimes, PositionBand).
  static constexpr int kTimeStages = kDim < 256 ? 2 : 1;  ///< Stages of TimeValues.
  static constexpr int kTileStages = 2;                   ///< Stages of tile descriptions: known one tile ahead.
  /// Stages of queries. With two, the next queries arrive during the last products of the present tile. If shared
  /// memory is short, the bias gets it.
  static constexpr int kQueryStages = kDim < 128 || (kDim == 128 && !kHasBias) ? 2 : 1;
  /// Consumers alternate at the tensor cores (pingpong): one computes SiLU while the other issues wgmma.
  static constexpr bool kPingpong = kDim < 256;

  /// Registers of a thread by role. A block has 64 K in all.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = kHasBias ? 208 : 232;
  /// For the warpgroup that looks up time biases.
  static constexpr int kFinderRegisters = 512 - 2 * kConsumerRegisters - kProducerRegisters;

  using QueryTile = SwizzledTile<kBlockQueries, kDim>;
  using KeyTile = SwizzledTile<kBlockKeys, kDim>;

  /// Layout of shared memory, in bytes from its start: stages of Q, K, V, then Sm90ForwardState.
  static constexpr std::uint32_t kKeysAt = kQueryStages * QueryTile::kBytes;
  static constexpr std::uint32_t kValuesAt = kKeysAt + kKeyStages * KeyTile::kBytes;
  static constexpr std::uint32_t kStateAt = kValuesAt + kKeyStages * KeyTile::kBytes;
};

}  // namespace headway::kernels
