// SPDX-License-Identifier: Apache-2.0

// Compile-time shapes of the backward kernels on sm_90a, and the layout of their shared memory.
//
// S is the score tile Q K', P = SiLU(S) with the mask, and dS its gradient. A prime means transposed: rows of dS' are
// keys.
//
// Shared memory decides the shapes. dim 128, kTiles: K and V of 128 keys take 64 KiB, two stages of Q and dO of 64
// queries 64 KiB, two stages of dS' 32 KiB, dQ 32 KiB: 192 KiB, beside which a table of bias weights by time difference
// fits.

#pragma once

#include "cuda/wgmma.cuh"
#include "hstu/cuda/sm90/backward/plan.hpp"
#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// Compile-time configuration of the backward kernel for dim 32, 64 and 128. Each consumer owns 64 keys of the tile and
/// keeps their dK and dV in registers.
template <int kDim_, bool kHasBias_, BackwardWork kWork_ = BackwardWork::kTiles>
struct Sm90BackwardShape {
  static constexpr bool kIsWide = false;
  static constexpr BackwardWork kWork = kWork_;
  static constexpr bool kTakesSequences = kWork != BackwardWork::kTiles;
  static constexpr int kDim = kDim_;
  static constexpr bool kHasBias = kHasBias_;
  static constexpr int kConsumers = 2;  ///< Consumer warpgroups.
  /// One producer warpgroup, the consumers, and with a bias one warpgroup for gradients of bias weights.
  static constexpr int kThreads = 128 * (kConsumers + (kHasBias ? 2 : 1));
  static constexpr int kBlockKeys = 64 * kConsumers;
  static constexpr int kBlockQueries = 64;
  static constexpr int kStages = 2;  ///< Stages of Q, dO and dS'.
  /// Stages of K and V. There are two if all sequences have one tile and no bias: then dQ needs no room, and the next K
  /// and V can arrive early.
  static constexpr int kKeyStages = kWork == BackwardWork::kSequencesOfATile && !kHasBias ? 2 : 1;
  /// Number of the last blocks of queries of a sequence whose dQ stays in shared memory between tiles, where there is
  /// room. Most tiles of keys add to these.
  static constexpr int kSharedDqBlocks = kWork != BackwardWork::kSequences || kHasBias ? 0 : kDim == 64 ? 6 : 2;
  /// Stages of bias data. They are prepared ahead and stay until their gradients have been added up.
  static constexpr int kBiasStages = 2 * kStages;
  /// Split of dQ between consumers. Usually a consumer computes the part that comes from its own keys. It computes half
  /// of the columns instead if registers or the traffic of dQ require it (dim 128), or if each dQ must have one owner.
  static constexpr bool kSplitsColumns = kDim == 128 || kTakesSequences;
  static constexpr int kDqColumns = kSplitsColumns ? kDim / 2 : kDim;
  static constexpr int kDqKeys = kSplitsColumns ? kBlockKeys : 64;
  /// Consumers that add to the same part of dQ for each tile of keys.
  static constexpr int kAdders = kSplitsColumns ? 1 : kConsumers;
  static_assert(kAdders == 1 || !kTakesSequences);

  /// Registers of a thread by role. A block has 64 K in all.
  static constexpr int kConsumerRegisters = !kHasBias ? 232 : kDim == 128 ? 224 : 208;
  static constexpr int kProducerRegisters = kHasBias && kDim == 128 ? 24 : 40;
  /// For the warpgroup that adds up gradients of bias weights. Not used without a bias.
  static constexpr int kGradientRegisters = 512 - 2 * kConsumerRegisters - kProducerRegisters;

  using KeyTile = SwizzledTile<kBlockKeys, kDim>;
  using QueryTile = SwizzledTile<kBlockQueries, kDim>;
  using PdsTile = SwizzledTile<kBlockKeys, kBlockQueries>;  ///< dS'.
  static constexpr int kDqElements = kBlockQueries * kDqColumns;

  /// Layout of shared memory, in bytes from its start: K and V, Q, dO, dS', dQ, then Sm90BackwardState.
  static constexpr std::uint32_t kValuesAt = KeyTile::kBytes;
  static constexpr std::uint32_t kKeyStageBytes = 2 * KeyTile::kBytes;
  static constexpr std::uint32_t kQueriesAt = kKeyStages * kKeyStageBytes;
  static constexpr std::uint32_t kGradOutAt = kQueriesAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kDsAt = kGradOutAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kAccDqAt = kDsAt + kStages * PdsTile::kBytes;
  static constexpr std::uint32_t kStateAt =
      kAccDqAt + (kTakesSequences ? kSharedDqBlocks : 1) * kConsumers * kDqElements * 4;
};

/// Compile-time configuration for dim 256. Registers hold only half of the columns of dK, dV and dQ, so each consumer
/// owns half of the columns, and computes S' for half of the queries. P' and dS' are exchanged through shared memory.
template <BackwardWork kWork_ = BackwardWork::kTiles>
struct Sm90WideBackwardShape {
  static constexpr bool kIsWide = true;
  static constexpr BackwardWork kWork = kWork_;
  static constexpr bool kTakesSequences = kWork != BackwardWork::kTiles;
  static constexpr int kDim = 256;
  static constexpr bool kHasBias = false;
  static constexpr int kConsumers = 2;  ///< Consumer warpgroups.
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kBlockKeys = 64;
  static constexpr int kBlockQueries = 64;
  static constexpr int kStages = 2;  ///< Stages of Q, dO, P' and dS'.
  static constexpr int kKeyStages = 1;
  static constexpr int kSharedDqBlocks = 0;
  static constexpr int kBiasStages = 1;  ///< Unused, as there is no bias.
  static constexpr int kDqColumns = kDim / 2;
  static constexpr int kAdders = 1;

  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  using KeyTile = SwizzledTile<kBlockKeys, kDim>;
  using QueryTile = SwizzledTile<kBlockQueries, kDim>;
  using PdsTile = SwizzledTile<kBlockKeys, kBlockQueries>;  ///< P' or dS'.
  static constexpr int kDqElements = kBlockQueries * kDqColumns;

  static constexpr std::uint32_t kValuesAt = KeyTile::kBytes;
  static constexpr std::uint32_t kKeyStageBytes = 2 * KeyTile::kBytes;
  static constexpr std::uint32_t kQueriesAt = kKeyStages * kKeyStageBytes;
  static constexpr std::uint32_t kGradOutAt = kQueriesAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kPAt = kGradOutAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kDsAt = kPAt + kStages * PdsTile::kBytes;
  static constexpr std::uint32_t kAccDqAt = kDsAt + kStages * PdsTile::kBytes;
  static constexpr std::uint32_t kStateAt = kAccDqAt;
};

}  // namespace headway::kernels
