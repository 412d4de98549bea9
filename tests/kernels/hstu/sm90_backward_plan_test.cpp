// SPDX-License-Identifier: Apache-2.0

// Decisions of the host before a backward pass of HSTU attention for sm_90a: unit of work and layout of the workspace.
//
// A block of threads takes a tile of keys (kTiles), a head of a whole sequence (kSequences), or a head of a sequence of
// one tile (kSequencesOfATile). With whole sequences no other block adds to dQ (acc_dq), so there are no atomics, but
// only enough of them keep all multiprocessors busy. Deterministic tiles add to dQ in turns, which are counted in the
// workspace. acc_dq is the end of the workspace, from byte acc_dq_at on. The first cleared_bytes of the workspace must
// be 0 before the kernel.

#include "hstu/cuda/sm90/backward/plan.hpp"

#include <gtest/gtest.h>

namespace headway::kernels {
namespace {

constexpr std::int32_t kMultiprocessors = 100;

/// Batch of equal lengths with two heads.
HstuForwardArgs batch(std::int64_t num_sequences, std::int64_t max_length, std::int32_t dim = 128) {
  HstuForwardArgs args;
  args.num_heads = 2;
  args.dim = args.value_dim = dim;
  args.sequences.num_sequences = num_sequences;
  args.sequences.num_queries = args.sequences.num_keys = num_sequences * max_length;
  args.sequences.max_queries = args.sequences.max_keys = max_length;
  return args;
}

BackwardWork work_of(HstuForwardArgs const& args) { return backward_work(args, kMultiprocessors); }

TEST(BackwardWork, IsSequencesWhereTheyAreShort) {
  EXPECT_EQ(work_of(batch(200, 512)), BackwardWork::kSequences);
  EXPECT_EQ(work_of(batch(200, 513)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(200, 512, 64)), BackwardWork::kSequences);
  EXPECT_EQ(work_of(batch(200, 513, 64)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(200, 256, 256)), BackwardWork::kSequences);
  EXPECT_EQ(work_of(batch(200, 257, 256)), BackwardWork::kTiles);
}

TEST(BackwardWork, IsTilesForDimsWithoutKernelsForSequences) {
  EXPECT_EQ(work_of(batch(200, 128, 32)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(200, 128, 64)), BackwardWork::kSequencesOfATile);
}

// With one head of a sequence per multiprocessor and round, rounds must be at least three quarters full. There are 100
// multiprocessors, and two heads per sequence.
TEST(BackwardWork, IsSequencesWhereHeadsOfThemFillRoundsOfAllMultiprocessors) {
  EXPECT_EQ(work_of(batch(37, 500)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(38, 500)), BackwardWork::kSequences);
  EXPECT_EQ(work_of(batch(50, 500)), BackwardWork::kSequences);
  EXPECT_EQ(work_of(batch(51, 500)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(74, 500)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(75, 500)), BackwardWork::kSequences);
}

TEST(BackwardWork, IsSequencesWhereverTheyAreOfOneTile) {
  EXPECT_EQ(work_of(batch(1, 128)), BackwardWork::kSequencesOfATile);
  EXPECT_EQ(work_of(batch(1, 129)), BackwardWork::kTiles);
  EXPECT_EQ(work_of(batch(1, 64, 256)), BackwardWork::kSequencesOfATile);
  EXPECT_EQ(work_of(batch(1, 65, 256)), BackwardWork::kTiles);
}

TEST(Sm90BackwardWorkspace, HasForSequencesTheSumsOfOneForEachMultiprocessor) {
  Sm90BackwardWorkspace const layout(batch(1000, 300), BackwardWork::kSequences, kMultiprocessors);
  EXPECT_EQ(layout.max_query_blocks, 5);
  // Blocks of 64 queries, dim 128, float32.
  EXPECT_EQ(layout.size_bytes - layout.acc_dq_at, kMultiprocessors * 5 * 64 * 128 * 4);
  EXPECT_EQ(layout.cleared_bytes, layout.acc_dq_at);
}

TEST(Sm90BackwardWorkspace, HasNoSumsForSequencesOfOneTile) {
  Sm90BackwardWorkspace const layout(batch(1000, 128), BackwardWork::kSequencesOfATile, kMultiprocessors);
  EXPECT_EQ(layout.size_bytes, layout.acc_dq_at);
}

TEST(Sm90BackwardWorkspace, IsNotClearedWhereEachMultiprocessorHasOneSequenceAtMost) {
  for (BackwardWork const work : {BackwardWork::kSequences, BackwardWork::kSequencesOfATile}) {
    EXPECT_EQ(Sm90BackwardWorkspace(batch(50, 128), work, kMultiprocessors).cleared_bytes, 0);
    EXPECT_GT(Sm90BackwardWorkspace(batch(51, 128), work, kMultiprocessors).cleared_bytes, 0);
  }
}

TEST(Sm90BackwardWorkspace, HasTurnsForTilesOnly) {
  HstuForwardArgs args = batch(200, 300);
  args.options.determinism = Determinism::kDeterministic;
  Sm90BackwardWorkspace const tiles(args, BackwardWork::kTiles, kMultiprocessors);
  EXPECT_TRUE(tiles.is_deterministic);
  EXPECT_EQ(tiles.cleared_bytes, tiles.size_bytes);
  EXPECT_FALSE(Sm90BackwardWorkspace(args, BackwardWork::kSequences, kMultiprocessors).is_deterministic);
}

}  // namespace
}  // namespace headway::kernels
