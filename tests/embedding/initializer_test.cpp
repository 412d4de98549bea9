// SPDX-License-Identifier: Apache-2.0

// Initial values of new rows. A law is their distribution: uniform, normal or constant. Philox, a counter-based
// generator, draws them from seed, table, id and column, so they do not depend on the order of insertions.

#include "headway/embedding/initializer.hpp"

#include "headway/base/status.hpp"
#include "headway/embedding/initial_values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace headway::embedding {
namespace {

using Words = std::array<std::uint32_t, 4>;

std::vector<float> values_of(Initializer const& initializer, Key key, std::size_t dim) {
  std::vector<float> embedding(dim);
  initializer.fill(key, embedding);
  return embedding;
}

/// Mean and standard deviation.
struct Moments {
  double mean, deviation;
};

/// Moments over the initial embeddings of 20,000 keys.
Moments moments_of(Initializer const& initializer) {
  constexpr std::uint64_t kNumKeys = 20'000;
  constexpr std::size_t kDim = 7;
  double sum = 0, squares = 0;
  for (std::uint64_t id = 0; id < kNumKeys; ++id) {
    for (float const value : values_of(initializer, {.id = id}, kDim)) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
  }
  double const count = kNumKeys * kDim, mean = sum / count;
  return {.mean = mean, .deviation = std::sqrt(squares / count - mean * mean)};
}

TEST(Philox, IsThatOfThePaper) {
  // Known answers from Random123, the library of the Philox paper.
  constexpr std::uint32_t kOnes = 0xffffffff;
  static_assert(philox({}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  static_assert(philox({kOnes, kOnes, kOnes, kOnes}, ~std::uint64_t{0}) ==
                Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  static_assert(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
                Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Initializer, UniformValuesAreTheSameForEver) {
  // Users' checkpoints and tables contain these bits: no device, compiler or version may change them.
  auto const values = values_of(Initializer::uniform(-0.25F, 0.75F, 42), {.id = 123'456'789'012'345, .table = 6}, 5);
  // The counter is the lower and upper half of the id, the table, and column / 4. A call gives four columns, each from
  // the upper 24 bits of a word.
  Words const first = philox({0x860ddf79, 0x00007048, 6, 0}, 42);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(values[i], static_cast<float>(static_cast<double>(first[i] >> 8) / 16'777'216 - 0.25)) << i;
  }
  EXPECT_EQ(
      values[4],
      static_cast<float>(static_cast<double>(philox({0x860ddf79, 0x00007048, 6, 1}, 42)[0] >> 8) / 16'777'216 - 0.25));
}

TEST(Initializer, LawsHaveTheirMoments) {
  auto const uniform = moments_of(Initializer::uniform(-3, 1, 5));
  EXPECT_NEAR(uniform.mean, -1, 0.02);
  EXPECT_NEAR(uniform.deviation, 4 / std::sqrt(12.0), 0.01);
  auto const normal = moments_of(Initializer::normal(2, 0.5F, 5));
  EXPECT_NEAR(normal.mean, 2, 0.01);
  EXPECT_NEAR(normal.deviation, 0.5, 0.005);
  auto const constant = moments_of(Initializer::constant(0.5F));
  EXPECT_EQ(constant.mean, 0.5);
}

TEST(Initializer, ValuesDependOnSeedTableIdAndColumnAlone) {
  auto const make = [](std::uint64_t seed, Key key, std::size_t dim) {
    return values_of(Initializer::normal(0, 1, seed), key, dim);
  };
  Key const key{.id = 77, .table = 2};
  auto const values = make(1, key, 64);
  EXPECT_EQ(make(1, key, 64), values);
  EXPECT_NE(make(2, key, 64), values);
  EXPECT_NE(make(1, {.id = 77, .table = 3}, 64), values);
  EXPECT_NE(make(1, {.id = std::uint64_t{77} << 32, .table = 2}, 64), values);
  auto const shorter = make(1, key, 13);
  EXPECT_TRUE(std::ranges::equal(shorter, std::span(values).first(13)));
}

TEST(Initializer, RefusesWhatIsNoLaw) {
  EXPECT_THROW(Initializer::uniform(1, 0, 0), base::UsageError);
  EXPECT_THROW(Initializer::normal(0, -1, 0), base::UsageError);
  EXPECT_THROW(Initializer::constant(std::numeric_limits<float>::quiet_NaN()), base::UsageError);
}

}  // namespace
}  // namespace headway::embedding
