// SPDX-License-Identifier: Apache-2.0

// Blocks of float16 with an exponent, of every supported instruction set: bounds of the error over all exponents,
// blocks of zeros, subnormal and non-finite values, and refusals.

#include "headway/kernels/half_blocks.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

using Limits = std::numeric_limits<float>;
using Values = std::vector<float>;

class HalfBlocksTest : public testing::TestWithParam<HalfBlockKernels> {
 protected:
  struct Block {
    std::uint8_t exponent = 0;
    std::vector<std::uint16_t> halves{};
    Values decoded{};
  };
  /// Encodes and decodes a block.
  static Block pass(Values const& values) {
    Block block{.halves = std::vector<std::uint16_t>(values.size()), .decoded = Values(values.size())};
    block.exponent = GetParam().encode(values.data(), values.size(), block.halves.data());
    GetParam().decode(block.halves.data(), block.exponent, values.size(), block.decoded.data());
    return block;
  }
};

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Largest error that the format allows for a value, if the largest magnitude of its block is `most`.
double allowed_error(double value, double most) {
  return std::max(std::abs(value) * std::ldexp(1, -11), most * std::ldexp(1, -39));
}

TEST_P(HalfBlocksTest, TheErrorIsBoundedForAllExponents) {
  std::mt19937 random(1);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::size_t const count : {1, 3, 8, 16, 17, 63, 64}) {
      Values values(count);
      for (auto& value : values) {  // Exponents up to 45 below the largest: more than float16 has.
        auto const lower = exponent - std::min<std::uint32_t>(exponent, random() % 45);
        value = from_bits((random() & 0x807fffff) | lower << 23);
      }
      values[random() % count] = from_bits((random() & 0x807fffff) | exponent << 23);
      double most = 0;
      for (auto const value : values) most = std::max<double>(most, std::abs(value));
      auto const block = pass(values);
      ASSERT_EQ(block.exponent, exponent);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(std::isfinite(block.decoded[i])) << "exponent " << exponent << ", value " << values[i];
        ASSERT_EQ(std::signbit(block.decoded[i]), std::signbit(values[i]));
        double const half_of_least = 0x1p-150;  // A subnormal result is rounded to a multiple of 2^-149.
        double const bound =
            exponent == 254 ? std::abs(values[i]) * 0x1p-10 : allowed_error(values[i], most) + half_of_least;
        ASSERT_LE(std::abs(double{block.decoded[i]} - values[i]), std::max(bound, allowed_error(values[i], most)))
            << "exponent " << exponent << ", value " << values[i] << ", largest " << most;
      }
    }
  }
}

TEST_P(HalfBlocksTest, TheLargestMagnitudeIsScaledToTheSameRangeForAllExponents) {
  for (std::uint32_t exponent = 1; exponent < 255; ++exponent) {
    for (std::uint32_t const fraction : {0U, 1U, 0x400000U, 0x7fe000U}) {
      auto const block = pass({from_bits(exponent << 23 | fraction)});
      EXPECT_GE(block.halves[0], 0x7400) << "2^14";
      EXPECT_LT(block.halves[0], 0x7800) << "2^15";
    }
  }
}

TEST_P(HalfBlocksTest, ValuesOfElevenBitsAreExact) {
  std::mt19937 random(2);
  for (std::uint32_t exponent = 1; exponent < 255; ++exponent) {
    Values values(64);
    for (auto& value : values) {
      auto const lower = exponent - std::min<std::uint32_t>(exponent - 1, random() % 28);
      value = from_bits((random() & 0x807fe000) | lower << 23);
    }
    values[5] = from_bits((random() & 0x007fe000) | exponent << 23);
    EXPECT_EQ(pass(values).decoded, values) << "exponent " << exponent;
  }
}

TEST_P(HalfBlocksTest, ZerosKeepTheirSigns) {
  auto const block = pass({0.0F, -0.0F, 0.0F});
  EXPECT_EQ(block.exponent, 0);
  EXPECT_EQ(block.halves, (std::vector<std::uint16_t>{0, 0x8000, 0}));
  EXPECT_FALSE(std::signbit(block.decoded[0]));
  EXPECT_TRUE(std::signbit(block.decoded[1]));
}

TEST_P(HalfBlocksTest, SubnormalBlocksLoseNoMoreThanOthers) {
  std::mt19937 random(3);
  for (int bits = 1; bits <= 23; ++bits) {
    Values values(64);
    for (auto& value : values) value = from_bits(random() % (1U << bits) | (random() & 0x80000000));
    auto const block = pass(values);
    EXPECT_EQ(block.exponent, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(double{block.decoded[i]} - values[i]), std::abs(double{values[i]}) * 0x1p-11);
    }
  }
  EXPECT_EQ(pass({Limits::denorm_min()}).decoded[0], Limits::denorm_min());
}

TEST_P(HalfBlocksTest, InfinitiesAndNansStayWhatTheyAreBesideFiniteValues) {
  for (std::size_t const count : {4, 16, 33, 64}) {
    Values values(count, 0.75F);
    values[0] = Limits::infinity();
    values[1] = -Limits::infinity();
    values[2] = Limits::quiet_NaN();
    auto const block = pass(values);
    EXPECT_EQ(block.exponent, 126) << "that of 0.75";
    EXPECT_EQ(block.decoded[0], Limits::infinity());
    EXPECT_EQ(block.decoded[1], -Limits::infinity());
    EXPECT_TRUE(std::isnan(block.decoded[2]));
    EXPECT_EQ(block.decoded[3], 0.75F);
  }
  auto const none = pass({Limits::infinity(), Limits::quiet_NaN()});
  EXPECT_EQ(none.exponent, 0);
  EXPECT_EQ(none.decoded[0], Limits::infinity());
  EXPECT_TRUE(std::isnan(none.decoded[1]));
}

TEST_P(HalfBlocksTest, TheLargestFloatsStayFinite) {
  for (float const most : {Limits::max(), from_bits(0x7f7ff000), from_bits(0x7f7fe000)}) {
    auto const block = pass({most, -most, 1.0F});
    EXPECT_EQ(block.decoded[0], from_bits(0x7f7fe000)) << "2^127 * (2 - 2^-10)";
    EXPECT_EQ(block.decoded[1], -block.decoded[0]);
  }
}

TEST_P(HalfBlocksTest, AllInstructionSetsGiveTheSameBits) {
  std::mt19937 random(4);
  auto const& baseline = usable_half_block_kernels().front();
  for (int round = 0; round < 2000; ++round) {
    Values values(1 + random() % 64);
    auto const exponent = random() % 255;
    for (auto& value : values) {
      value = from_bits((random() & 0x807fffff) | static_cast<std::uint32_t>(random() % (exponent + 1)) << 23);
    }
    std::vector<std::uint16_t> expected(values.size());
    auto const block = pass(values);
    ASSERT_EQ(block.exponent, baseline.encode(values.data(), values.size(), expected.data()));
    ASSERT_EQ(block.halves, expected);
    Values decoded(values.size());
    baseline.decode(expected.data(), block.exponent, values.size(), decoded.data());
    ASSERT_EQ(block.decoded, decoded);
  }
}

INSTANTIATE_TEST_SUITE_P(, HalfBlocksTest,
                         testing::ValuesIn(usable_half_block_kernels().begin(), usable_half_block_kernels().end()),
                         [](auto const& each) { return std::string(each.param.instruction_set); });

TEST(HalfBlocks, RowsHaveBlocksOfTheirOwn) {
  constexpr std::size_t kRows = 5;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::size_t const dim : {1, 2, 16, 63, 64, 65, 128, 200}) {
    Values rows(kRows * dim), decoded(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {  // Rows and blocks of very different size.
      rows[i] = normal(random) * std::ldexp(1.0F, static_cast<int>(i / dim * 20) - 60 + static_cast<int>(i % dim / 64));
    }
    std::vector<std::uint16_t> halves(rows.size());
    std::vector<std::uint8_t> exponents(kRows * half_blocks(dim));
    encode_half_blocks(rows, dim, halves, exponents);
    decode_half_blocks(halves, exponents, dim, decoded);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::size_t const column = i % dim / kHalfBlock * kHalfBlock, first = i / dim * dim + column;
      double most = 0;
      for (std::size_t at = first; at < first + std::min(kHalfBlock, dim - column); ++at) {
        most = std::max<double>(most, std::abs(rows[at]));
      }
      EXPECT_LE(std::abs(double{decoded[i]} - rows[i]), allowed_error(rows[i], most)) << "dim " << dim;
    }
  }
}

TEST(HalfBlocks, RowsOf64ColumnsTakeAHalf) {
  EXPECT_GE(64 * sizeof(float) / static_cast<double>(half_bytes(1, 64)), 1.9);
  for (std::size_t dim = 1; dim < 300; ++dim) EXPECT_LT(half_bytes(3, dim), 3 * dim * sizeof(float));
}

TEST(HalfBlocks, WrongSizesAndExponentsAreRefused) {
  Values rows(128);
  std::vector<std::uint16_t> halves(128);
  std::vector<std::uint8_t> exponents(2);
  EXPECT_THROW(encode_half_blocks(rows, 0, halves, exponents), base::UsageError);
  EXPECT_THROW(encode_half_blocks(rows, 60, halves, exponents), base::UsageError);
  EXPECT_THROW(encode_half_blocks(rows, 32, halves, exponents), base::UsageError);
  EXPECT_THROW(decode_half_blocks(std::span(halves).first(127), exponents, 64, rows), base::UsageError);
  exponents[1] = 255;
  EXPECT_THROW(decode_half_blocks(halves, exponents, 64, rows), base::UsageError);
  exponents[1] = 254;
  decode_half_blocks(halves, exponents, 64, rows);
}

}  // namespace
}  // namespace headway::kernels
