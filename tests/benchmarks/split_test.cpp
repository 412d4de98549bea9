// SPDX-License-Identifier: Apache-2.0

// How the benchmarks divide a rank's bytes among its peers. Sender and receiver compute block sizes separately, so
// every split must add up exactly, for every size, number of ranks and source. Zipf: the n-th largest block has 1/n of
// the bytes of the largest, in an order of each source. Incast: the same, but rank 0 receives most from all sources.

#include "split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headway::benchmarks {
namespace {

std::vector<std::size_t> blocks_of(Split split, std::size_t total, int source, int ranks) {
  std::vector<std::size_t> blocks;
  for (int peer = 0; peer < ranks; ++peer) blocks.push_back(block_bytes(split, total, source, peer, ranks));
  return blocks;
}

std::size_t sum(std::vector<std::size_t> const& values) {
  std::size_t total = 0;
  for (std::size_t const value : values) total += value;
  return total;
}

TEST(Split, AddsUpToTheBytesPerRankForEverySplitSizeAndSource) {
  for (Split const split : {Split::kEven, Split::kZipf, Split::kIncast}) {
    for (int const ranks : {1, 2, 3, 8}) {
      for (std::size_t const total : {0u, 1u, 7u, 8u, 4096u, 1'000'003u}) {
        for (int source = 0; source < ranks; ++source) EXPECT_EQ(sum(blocks_of(split, total, source, ranks)), total);
      }
    }
  }
}

TEST(Split, OfEvenBlocksDiffersByAtMostOneByte) {
  auto const blocks = blocks_of(Split::kEven, 1003, 2, 8);
  EXPECT_LE(*std::ranges::max_element(blocks) - *std::ranges::min_element(blocks), 1u);
}

TEST(Split, OfOneByteGoesToAnotherRankOfEachSource) {
  for (int source = 0; source < 4; ++source) {
    EXPECT_EQ(block_bytes(Split::kEven, 1, source, (source + 1) % 4, 4), 1u);
  }
}

TEST(Split, OfZipfHasSharesInTheRatioOfTheirPlaces) {
  auto blocks = blocks_of(Split::kZipf, 1'000'000, 3, 8);
  std::ranges::sort(blocks, std::greater<>{});
  for (std::size_t place = 1; place < blocks.size(); ++place) {
    EXPECT_NEAR(static_cast<double>(blocks[0]) / static_cast<double>(blocks[place]), static_cast<double>(place + 1),
                1e-3);
  }
}

TEST(Split, OfZipfDiffersBetweenSourcesAndOfIncastDoesNot) {
  EXPECT_NE(blocks_of(Split::kZipf, 100'000, 0, 8), blocks_of(Split::kZipf, 100'000, 1, 8));
  EXPECT_EQ(blocks_of(Split::kIncast, 100'000, 0, 8), blocks_of(Split::kIncast, 100'000, 1, 8));
  EXPECT_GT(block_bytes(Split::kIncast, 100'000, 5, 0, 8), block_bytes(Split::kIncast, 100'000, 5, 1, 8));
}

}  // namespace
}  // namespace headway::benchmarks
