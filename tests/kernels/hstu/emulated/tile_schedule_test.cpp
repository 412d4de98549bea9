// SPDX-License-Identifier: Apache-2.0

// Order of tiles (TileSchedule), run by the emulator.
//
// A tile is a block of rows of one head of a sequence. The schedule maps numbers 0, 1, ... to tiles, expensive ones
// first. The last tile of a sequence costs most with kLastFirst, the first one with kFirstFirst. kFirstOnly has one
// number per head of a sequence. Within a range of costs, sections of kSectionSequences sequences follow each other.

#include "cuda_dialect.hpp"
#include "hstu/cuda/tile/sequence_tile.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

namespace headway::kernels {
namespace {

constexpr std::int32_t kBlockRows = 4, kNumHeads = 2, kSectionSequences = 5;

std::vector<std::int64_t> offsets_of(std::vector<std::int64_t> const& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t const length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

std::int32_t num_blocks(std::int64_t length) {
  return static_cast<std::int32_t>((length + kBlockRows - 1) / kBlockRows);
}

/// Tiles in the order of their numbers.
std::vector<SequenceTile> scheduled(std::vector<std::int64_t> const& lengths, std::int64_t max_rows, BlockOrder order) {
  auto const offsets = offsets_of(lengths);
  std::vector<SequenceTile> tiles;
  device_emulator::launch({.block = {kWarpThreads}}, [&] {
    TileSchedule schedule(offsets.data(), static_cast<std::int32_t>(lengths.size()), kNumHeads, max_rows, kBlockRows,
                          kSectionSequences, order);
    SequenceTile tile;
    for (std::int32_t number = 0; schedule.find(number, tile); ++number) {
      if (threadIdx.x == 0) tiles.push_back(tile);
    }
  });
  return tiles;
}

/// Expects each tile to have exactly one number.
void expect_each_tile_once(std::vector<std::int64_t> const& lengths, std::int64_t max_rows, BlockOrder order) {
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> found, expected;
  for (auto const& tile : scheduled(lengths, max_rows, order)) {
    found.emplace_back(tile.sequence, tile.head, tile.block);
  }
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(lengths.size()); ++i) {
    for (std::int32_t head = 0; head < kNumHeads; ++head) {
      for (std::int32_t block = 0; block < num_blocks(lengths[static_cast<std::size_t>(i)]); ++block) {
        expected.emplace_back(i, head, block);
      }
    }
  }
  std::ranges::sort(found);
  EXPECT_EQ(found, expected);
}

std::vector<std::int64_t> long_tail() {
  std::mt19937 generator(3);
  std::lognormal_distribution<double> length(3, 1);
  std::vector<std::int64_t> lengths(71);
  for (auto& each : lengths) each = std::clamp<std::int64_t>(std::llround(length(generator)) - 3, 0, 150);
  lengths[70] = 150;
  return lengths;
}

TEST(TileSchedule, HasEachTileOnce) {
  for (auto const order : {BlockOrder::kLastFirst, BlockOrder::kFirstFirst}) {
    expect_each_tile_once(long_tail(), 150, order);
    expect_each_tile_once(long_tail(), 1000, order);  // The announced length may exceed all real ones.
    expect_each_tile_once({7, 0, 1, 4, 9}, 9, order);
    expect_each_tile_once({0, 0}, 8, order);
    expect_each_tile_once({}, 8, order);
  }
}

TEST(TileSchedule, BeginsWithTilesThatCostMostWhereverTheirSequenceIs) {
  auto const lengths = long_tail();
  for (auto const order : {BlockOrder::kLastFirst, BlockOrder::kFirstFirst}) {
    // Costs fall by ranges. Within a range, tiles of a later section may cost more, by a factor of less than 8.
    std::int32_t least = num_blocks(150);
    for (auto const& tile : scheduled(lengths, 150, order)) {
      std::int32_t const blocks = num_blocks(lengths[static_cast<std::size_t>(tile.sequence)]);
      std::int32_t const cost = order == BlockOrder::kLastFirst ? tile.block + 1 : blocks - tile.block;
      EXPECT_LE(cost, std::max(8 * least, 3)) << "block " << tile.block << " of sequence " << tile.sequence;
      least = std::min(least, cost);
    }
  }
}

TEST(TileSchedule, HasEachSequenceOnceByTheirLengthsWithinASectionIfFirstTilesStandForAll) {
  auto lengths = long_tail();
  for (auto& each : lengths) each = std::min<std::int64_t>(each, 30);
  std::vector<int> times_found(lengths.size());
  std::int32_t section = -1, blocks_before = 0;
  for (auto const& tile : scheduled(lengths, 30, BlockOrder::kFirstOnly)) {
    EXPECT_EQ(tile.block, 0);
    ++times_found[static_cast<std::size_t>(tile.sequence)];
    std::int32_t const blocks = num_blocks(lengths[static_cast<std::size_t>(tile.sequence)]);
    if (tile.sequence / kSectionSequences == section) {
      EXPECT_LE(blocks, blocks_before);
    } else {
      EXPECT_EQ(tile.sequence / kSectionSequences, section + 1);
    }
    section = tile.sequence / kSectionSequences;
    blocks_before = blocks;
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(times_found[i], lengths[i] > 0 ? kNumHeads : 0);
}

}  // namespace
}  // namespace headway::kernels
