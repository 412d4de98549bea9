#pragma once

#include "cuda/wgmma.cuh"
#include "hstu/cuda/hopper_backward_params.hpp"
#include "hstu/cuda/time_table.cuh"

#include <cstdint>

namespace headway::kernels {

/// How a block of threads works on a tile of keys: it goes through the queries that see them, and keeps the gradients
/// of keys and values in registers. Warpgroups have half of the keys each.
template <int kDim_, bool kHasBias_, BackwardWork kWork_ = BackwardWork::kTiles>
struct HopperBackwardShape {
  static constexpr bool kIsWide = false;
  static constexpr BackwardWork kWork = kWork_;
  static constexpr bool kTakesSequences = kWork != BackwardWork::kTiles;
  static constexpr int kDim = kDim_;
  static constexpr bool kHasBias = kHasBias_;
  static constexpr int kConsumers = 2;  ///< Warpgroups that compute.
  /// One more brings tiles, and one adds up gradients of bias weights, but for what those do.
  static constexpr int kThreads = 128 * (kConsumers + (kHasBias ? 2 : 1));
  static constexpr int kBlockKeys = 64 * kConsumers;
  static constexpr int kBlockQueries = 64;
  static constexpr int kStages = 2;  ///< Of queries.
  /// Of keys and values: the next come beside the present ones where sums need no room, as there is but one tile.
  static constexpr int kKeyStages = kWork == BackwardWork::kSequencesOfATile && !kHasBias ? 2 : 1;
  /// So many of the last blocks of queries of a sequence, which most tiles of keys add to, have their sums in shared
  /// memory where there is room.
  static constexpr int kNearBlocks = kWork != BackwardWork::kSequences || kHasBias ? 0 : kDim == 64 ? 6 : 2;
  /// What a bias needs is prepared ahead, and stays until its gradients have been added up.
  static constexpr int kBiasStages = 2 * kStages;
  /// Of the gradients of queries a warpgroup computes the part of its keys, or where registers and the traffic of sums
  /// do not let it, or no other may add to its sums, half of the columns.
  static constexpr bool kSplitsColumns = kDim == 128 || kTakesSequences;
  static constexpr int kQuerySumColumns = kSplitsColumns ? kDim / 2 : kDim;
  static constexpr int kQuerySumKeys = kSplitsColumns ? kBlockKeys : 64;
  /// Those that add to sums of a tile of queries for each tile of keys.
  static constexpr int kAdders = kSplitsColumns ? 1 : kConsumers;
  static_assert(kAdders == 1 || !kTakesSequences);

  /// Of each thread; 64 K in all.
  static constexpr int kConsumerRegisters = !kHasBias ? 232 : kDim == 128 ? 224 : 208;
  static constexpr int kProducerRegisters = kHasBias && kDim == 128 ? 24 : 40;
  static constexpr int kGradientRegisters = 512 - 2 * kConsumerRegisters - kProducerRegisters;  ///< Of biases.

  using KeyTile = SwizzledTile<kBlockKeys, kDim>;
  using QueryTile = SwizzledTile<kBlockQueries, kDim>;
  using ScoreTile = SwizzledTile<kBlockKeys, kBlockQueries>;  ///< Gradients of scores: keys, queries.
  static constexpr int kQuerySums = kBlockQueries * kQuerySumColumns;

  static constexpr std::uint32_t kValuesAt = KeyTile::kBytes;
  static constexpr std::uint32_t kKeyStageBytes = 2 * KeyTile::kBytes;
  static constexpr std::uint32_t kQueriesAt = kKeyStages * kKeyStageBytes;
  static constexpr std::uint32_t kGradsAt = kQueriesAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kScoresAt = kGradsAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kQuerySumsAt = kScoresAt + kStages * ScoreTile::kBytes;
  static constexpr std::uint32_t kStateAt =
      kQuerySumsAt + (kTakesSequences ? kNearBlocks : 1) * kConsumers * kQuerySums * 4;
};

/// The same for rows so wide that a warpgroup has room for half of the columns of all gradients only. Of scores each
/// computes those of half of the queries; weights and gradients of scores go through shared memory.
template <BackwardWork kWork_ = BackwardWork::kTiles>
struct HopperWideBackwardShape {
  static constexpr bool kIsWide = true;
  static constexpr BackwardWork kWork = kWork_;
  static constexpr bool kTakesSequences = kWork != BackwardWork::kTiles;
  static constexpr int kDim = 256;
  static constexpr bool kHasBias = false;
  static constexpr int kConsumers = 2;  ///< Warpgroups that compute.
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kBlockKeys = 64;
  static constexpr int kBlockQueries = 64;
  static constexpr int kStages = 2;  ///< Of queries.
  static constexpr int kKeyStages = 1;
  static constexpr int kNearBlocks = 0;
  static constexpr int kBiasStages = 1;  ///< There is no bias.
  static constexpr int kQuerySumColumns = kDim / 2;
  static constexpr int kAdders = 1;

  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  using KeyTile = SwizzledTile<kBlockKeys, kDim>;
  using QueryTile = SwizzledTile<kBlockQueries, kDim>;
  using ScoreTile = SwizzledTile<kBlockKeys, kBlockQueries>;  ///< Weights, or gradients of scores: keys, queries.
  static constexpr int kQuerySums = kBlockQueries * kQuerySumColumns;

  static constexpr std::uint32_t kValuesAt = KeyTile::kBytes;
  static constexpr std::uint32_t kKeyStageBytes = 2 * KeyTile::kBytes;
  static constexpr std::uint32_t kQueriesAt = kKeyStages * kKeyStageBytes;
  static constexpr std::uint32_t kGradsAt = kQueriesAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kWeightsAt = kGradsAt + kStages * QueryTile::kBytes;
  static constexpr std::uint32_t kScoresAt = kWeightsAt + kStages * ScoreTile::kBytes;
  static constexpr std::uint32_t kQuerySumsAt = kScoresAt + kStages * ScoreTile::kBytes;
  static constexpr std::uint32_t kStateAt = kQuerySumsAt;
};

}  // namespace headway::kernels
