// SPDX-License-Identifier: Apache-2.0

// Rounding to bfloat16: to nearest with ties to even, and stochastic rounding, which must be right on average.
// Example: 1 + 1/4 of a step becomes 1 in three of four draws and 1 + one step in the fourth.

#include "headway/embedding/bfloat16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace headway::embedding {
namespace {

constexpr float kStep = 0x1p-7F;  // Distance of neighbouring bfloat16 values between 1 and 2.

TEST(Bfloat16, WhatFitsStaysAsItIs) {
  for (float const value : {0.0F, -0.0F, 1.0F, -1.5F, 0x1p-130F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(widen(round_to_nearest(value)), value);
    EXPECT_EQ(widen(round_stochastically(value, 0xffff)), value);  // The largest draw of 16 random bits.
  }
  EXPECT_TRUE(std::isnan(widen(round_to_nearest(std::nanf("1")))));
  // A NaN of which only the lowest bit is set: without its lower half it would be infinity.
  EXPECT_TRUE(std::isnan(widen(round_stochastically(std::bit_cast<float>(0x7f800001U), 0xffff))));
}

TEST(Bfloat16, TheNearestIsTakenAndOfTwoTheEvenOne) {
  EXPECT_EQ(widen(round_to_nearest(1 + 0.49F * kStep)), 1);
  EXPECT_EQ(widen(round_to_nearest(1 + 0.51F * kStep)), 1 + kStep);
  EXPECT_EQ(widen(round_to_nearest(1 + 0.5F * kStep)), 1);
  EXPECT_EQ(widen(round_to_nearest(1 + 1.5F * kStep)), 1 + 2 * kStep);
  EXPECT_EQ(widen(round_to_nearest(-1 - 0.51F * kStep)), -1 - kStep);
}

TEST(Bfloat16, StochasticRoundingIsRightOnAverage) {
  double sum = 0;
  constexpr std::uint32_t kWords = 1U << 16;
  for (std::uint32_t random = 0; random < kWords; ++random) {
    float const rounded = widen(round_stochastically(1 + 0.25F * kStep, static_cast<std::uint16_t>(random)));
    EXPECT_TRUE(rounded == 1 || rounded == 1 + kStep);
    sum += rounded;
  }
  EXPECT_EQ(sum / kWords, 1 + 0.25 * kStep);
}

}  // namespace
}  // namespace headway::embedding
