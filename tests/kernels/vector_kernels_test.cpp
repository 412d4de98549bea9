// SPDX-License-Identifier: Apache-2.0

// VectorKernels (sums, copies and optimizer steps of rows of floats) of every supported instruction set: each must give
// the bits of the plain formulas. A vector is one row of `dim` floats. add() adds to its output; sum() overwrites it.

#include "headway/kernels/vector_kernels.hpp"

#include "headway/kernels/row_optimizer.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headway::kernels {
namespace {

using Values = std::vector<float>;

class VectorKernelsTest : public testing::TestWithParam<VectorKernels> {};

Values random_values(std::size_t size, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Values values(size);
  for (auto& value : values) value = normal(random);
  return values;
}

constexpr std::array<std::size_t, 11> kDims{1, 2, 15, 16, 17, 31, 48, 64, 100, 128, 333};

TEST_P(VectorKernelsTest, SumsAreTakenInTheOrderOfTheirTerms) {
  std::mt19937_64 random(1);
  for (std::size_t const dim : kDims) {
    for (std::size_t const count : {0, 1, 2, 7, 40}) {
      auto const values = random_values(count * dim, random), weights = random_values(count, random);
      std::vector<float const*> vectors;
      for (std::size_t i = 0; i < count; ++i) vectors.push_back(&values[i * dim]);
      for (float const* const given : {static_cast<float const*>(nullptr), weights.data()}) {
        auto sum = random_values(dim, random), expected = sum;
        for (std::size_t i = 0; i < count; ++i) {
          for (std::size_t column = 0; column < dim; ++column) {
            float const product = (given == nullptr ? 1 : given[i]) * vectors[i][column];
            expected[column] += product;
          }
        }
        GetParam().add(dim, count, vectors.data(), given, sum.data());
        ASSERT_EQ(sum, expected) << "dim " << dim << ", " << count << " vectors";

        Values zeros(dim), written(dim, std::numeric_limits<float>::quiet_NaN());
        GetParam().add(dim, count, vectors.data(), given, zeros.data());
        GetParam().sum(dim, count, vectors.data(), given, written.data());
        ASSERT_EQ(written, zeros) << "dim " << dim << ", " << count << " vectors";
      }
    }
  }
}

TEST_P(VectorKernelsTest, ValuesAreFiniteUnlessOneIsInfiniteOrNan) {
  using Limits = std::numeric_limits<float>;
  for (std::size_t const size : {0, 1, 15, 16, 17, 100}) {
    Values values(size, -Limits::max());
    EXPECT_TRUE(GetParam().are_finite(size, values.data()));
    for (std::size_t at = 0; at < size; ++at) {
      for (float const bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
        values[at] = bad;
        EXPECT_FALSE(GetParam().are_finite(size, values.data())) << size << " values, " << bad << " at " << at;
      }
      values[at] = at % 2 == 0 ? Limits::denorm_min() : -0.0F;
    }
    EXPECT_TRUE(GetParam().are_finite(size, values.data()));
  }
}

TEST_P(VectorKernelsTest, GatheredVectorsLieBesideEachOtherAndThoseMissingAreLeftOut) {
  std::mt19937_64 random(2);
  // stream() is gather() with non-temporal stores; it takes whole vectors only.
  for (auto const& [copy, dims] : {std::pair{GetParam().gather, std::vector<std::size_t>(kDims.begin(), kDims.end())},
                                   std::pair{GetParam().stream, std::vector<std::size_t>{16, 32, 64, 128}}}) {
    for (std::size_t const dim : dims) {
      constexpr std::size_t kCount = 9, kMissing = 4;
      auto const values = random_values(kCount * dim, random);
      std::vector<float const*> vectors;
      for (std::size_t i = 0; i < kCount; ++i) vectors.push_back(i == kMissing ? nullptr : &values[i * dim]);
      auto expected = values;
      std::fill_n(expected.begin() + kMissing * dim, dim, -9.0F);
      constexpr std::size_t kUnit = VectorKernels::kStreamBytes / sizeof(float);
      Values memory(kCount * dim + kUnit, -9);
      auto const offset = reinterpret_cast<std::uintptr_t>(memory.data()) / sizeof(float) % kUnit;
      float* const to = memory.data() + (kUnit - offset) % kUnit;
      // The second list is what the next call will read.
      copy(dim, {.at = vectors.data(), .count = 5}, {.at = vectors.data() + 5, .count = 4}, to);
      copy(dim, {.at = vectors.data() + 5, .count = 4}, {.at = nullptr, .count = 0}, to + 5 * dim);
      ASSERT_EQ(Values(to, to + kCount * dim), expected) << "dim " << dim;
    }
  }
}

/// Mean of squares with the order of sums that VectorKernels specifies.
float mean_of_squares(Values const& values) {
  std::array<float, VectorKernels::kPartialSums> sums{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    float const square = values[i] * values[i];
    sums[i % sums.size()] += square;
  }
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0] / static_cast<float>(values.size());
}

TEST_P(VectorKernelsTest, RowWiseAdagradAddsTheMeanOfSquaresOfItsPartialSums) {
  std::mt19937_64 random(3);
  RowOptimizer const adagrad({.kind = OptimizerKind::kRowWiseAdagrad, .epsilon = 1e-8});
  auto const factors = adagrad.factors({.learning_rate = 0.1});
  for (std::size_t const dim : kDims) {
    auto weights = random_values(dim, random), expected = weights;
    auto const gradient = random_values(dim, random);
    float row_state = 0.5;
    float const sum = 0.5F + mean_of_squares(gradient), rate = 0.1F / (std::sqrt(sum) + 1e-8F);
    for (std::size_t i = 0; i < dim; ++i) {
      float const change = rate * gradient[i];
      expected[i] -= change;
    }
    GetParam().update[static_cast<std::size_t>(OptimizerKind::kRowWiseAdagrad)](factors, dim, weights.data(), nullptr,
                                                                                row_state, gradient.data());
    ASSERT_EQ(row_state, sum) << dim;
    ASSERT_EQ(weights, expected) << dim;
  }
}

TEST_P(VectorKernelsTest, EachOptimizerHasTheSameBitsAsWithTheBaseline) {
  std::mt19937_64 random(4);
  auto const& baseline = usable_vector_kernels().front();
  for (auto const kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad, OptimizerKind::kRowWiseAdagrad,
                          OptimizerKind::kAdam, OptimizerKind::kRowWiseAdam}) {
    for (auto const decay : {WeightDecay::kL2, WeightDecay::kDecoupled}) {
      RowOptimizer const optimizer({.kind = kind, .weight_decay = 0.1, .decay = decay});
      for (std::size_t const dim : kDims) {
        auto weights = random_values(dim, random), other_weights = weights;
        Values state(optimizer.state_size(dim)), other_state = state;
        float row_state = 0, other_row_state = 0;
        for (std::uint64_t number = 1; number <= 4; ++number) {
          auto const factors = optimizer.factors({.learning_rate = 0.1, .number = number});
          auto const gradient = random_values(dim, random);
          auto const at = static_cast<std::size_t>(kind);
          GetParam().update[at](factors, dim, weights.data(), state.data(), row_state, gradient.data());
          baseline.update[at](factors, dim, other_weights.data(), other_state.data(), other_row_state, gradient.data());
        }
        ASSERT_EQ(weights, other_weights) << "optimizer " << static_cast<int>(kind) << ", dim " << dim;
        ASSERT_EQ(state, other_state) << "optimizer " << static_cast<int>(kind) << ", dim " << dim;
        ASSERT_EQ(row_state, other_row_state) << "optimizer " << static_cast<int>(kind) << ", dim " << dim;
      }
    }
  }
}

std::vector<VectorKernels> all_kernels() { return {usable_vector_kernels().begin(), usable_vector_kernels().end()}; }

INSTANTIATE_TEST_SUITE_P(InstructionSets, VectorKernelsTest, testing::ValuesIn(all_kernels()),
                         [](auto const& each) { return std::string(each.param.instruction_set); });

}  // namespace
}  // namespace headway::kernels
