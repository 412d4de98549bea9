// The functions of each instruction set that this processor has, one by one.

#include "hstu/cpu/block_kernels.hpp"

#include "jagged_tensor.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace headway::kernels::hstu {
namespace {

template <class Real>
class BlockKernelsOf : public testing::Test {
 protected:
  /// Calls `visit` with the functions of each instruction set.
  template <class Visit>
  static void for_each_set(Visit visit) {
    for (BlockKernels<Real> const& kernels : usable_block_kernels<Real>()) {
      SCOPED_TRACE(kernels.instruction_set);
      visit(kernels);
    }
  }

  std::vector<Real> random_block(std::int64_t size, Real from = -1, Real to = 1) {
    std::uniform_real_distribution<Real> distribution(from, to);
    std::vector<Real> block(static_cast<std::size_t>(size));
    for (Real& value : block) value = distribution(random_);
    return block;
  }

  static constexpr Real kUnit = std::numeric_limits<Real>::epsilon();

 private:
  std::mt19937 random_{1};
};

using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(BlockKernelsOf, Reals);

TYPED_TEST(BlockKernelsOf, MultiplyAsALoopDoes) {
  using Real = TypeParam;
  struct Size {
    std::int64_t rows, columns, depth;
  };
  this->for_each_set([&](BlockKernels<Real> const& kernels) {
    for (auto const [rows, columns, depth] : {Size{1, 1, 1}, {5, 17, 3}, {8, 48, 64}, {13, 33, 9}, {64, 130, 20}}) {
      std::int64_t const room = (rows + kRowStep) * depth, stride = padded(columns) + 1;
      std::vector<Real> const a = this->random_block(room), b = this->random_block(depth * stride);
      std::vector<Real> const before = this->random_block((rows + kRowStep) * stride);
      for (bool const is_transposed : {false, true})
        for (Into const into : {Into::kReplace, Into::kAdd}) {
          std::vector<Real> c = before;
          std::int64_t const row_stride = is_transposed ? 1 : depth;
          std::int64_t const depth_stride = is_transposed ? rows + kRowStep - 1 : 1;
          kernels.multiply(
              {rows, columns, depth, a.data(), row_stride, depth_stride, b.data(), stride, c.data(), stride, into});
          for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t column = 0; column < columns; ++column) {
              auto const at = static_cast<std::size_t>(row * stride + column);
              double sum = into == Into::kAdd ? before[at] : 0;
              for (std::int64_t k = 0; k < depth; ++k)
                sum += double{a[static_cast<std::size_t>(row * row_stride + k * depth_stride)]} *
                       b[static_cast<std::size_t>(k * stride + column)];
              ASSERT_NEAR(c[at], sum, static_cast<double>(depth + 1) * this->kUnit)
                  << rows << " by " << columns << " by " << depth;
            }
        }
    }
  });
}

/// A block of scores from -110 to 110 with a bias, of which each query sees some keys.
template <class Real>
struct Scores {
  std::vector<Real> scores, bias;
  SeenKeys<Real> seen{};
  static constexpr std::int64_t kNumKeys = 40, kNumQueries = 50;
  static constexpr MaskIndex<Real> kFirstKey = 100;
  static constexpr Real kAlpha = Real(1.5), kScale = Real(0.25);

  Scores(std::vector<Real> values, std::vector<Real> added) : scores(std::move(values)), bias(std::move(added)) {
    for (MaskIndex<Real> query = 0; query < kNumQueries; ++query) {
      seen.begin[query] = kFirstKey + query / 4;
      seen.end[query] = kFirstKey + query / 2;
      seen.self[query] = kFirstKey + query;
    }
  }

  ScoreBlock<Real> block() {
    return {kNumKeys, kNumQueries, scores.data(), bias.data(), &seen, kFirstKey, kAlpha, kScale};
  }

  /// Calls visit(index, alpha * (score + bias), whether it is seen) for each.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::int64_t key = 0; key < kNumKeys; ++key)
      for (std::int64_t query = 0; query < kNumQueries; ++query) {
        auto const at = static_cast<std::size_t>(key * kBlockSize + query);
        bool const is_seen = (key >= query / 4 && key < query / 2) || key == query;
        visit(at, double{(scores[at] + bias[at]) * kAlpha}, is_seen);
      }
  }
};

TYPED_TEST(BlockKernelsOf, WeighByASigmoidOfFullPrecision) {
  using Real = TypeParam;
  constexpr Real kSize = kBlockSize * kBlockSize;
  Scores<Real> const given(this->random_block(kSize, -55, 55), this->random_block(kSize, -2, 2));
  std::vector<Real> const of_weights = this->random_block(kSize);
  this->for_each_set([&](BlockKernels<Real> const& kernels) {
    Scores<Real> weighed = given, with_gradient = given;
    std::vector<Real> gradients = of_weights;
    kernels.weigh(weighed.block());
    kernels.weigh_with_gradient(with_gradient.block(), gradients.data());
    given.for_each([&](std::size_t at, double x, bool is_seen) {
      double const s = 1 / (1 + std::exp(-x)), weight = is_seen ? x * s * given.kScale : 0;
      double const slope = is_seen ? s * (1 + x * (1 - s)) * given.kScale * given.kAlpha : 0;
      ASSERT_NEAR(weighed.scores[at], weight, 8 * this->kUnit * std::abs(weight)) << "x = " << x;
      ASSERT_EQ(with_gradient.scores[at], weighed.scores[at]) << "x = " << x;
      ASSERT_NEAR(gradients[at], slope * of_weights[at], 8 * this->kUnit * (std::abs(slope) + s * std::abs(x)))
          << "x = " << x;
    });
  });
}

TYPED_TEST(BlockKernelsOf, TransposeBlocks) {
  using Real = TypeParam;
  std::vector<Real> const block = this->random_block(5 * 20);
  this->for_each_set([&](BlockKernels<Real> const& kernels) {
    std::vector<Real> transposed(17 * kBlockSize);
    kernels.transpose(block.data(), 20, 5, 17, transposed.data(), kBlockSize);
    for (std::size_t row = 0; row < 5; ++row)
      for (std::size_t column = 0; column < 17; ++column)
        EXPECT_EQ(transposed[column * kBlockSize + row], block[row * 20 + column]);
  });
}

TYPED_TEST(BlockKernelsOf, LoadFillsRowsWithZeros) {
  using Real = TypeParam;
  std::vector<Real> const source{1, 2, 3, 4, 5, 6};
  ElementType const type = sizeof(Real) == 4 ? ElementType::kFloat32 : ElementType::kFloat64;
  this->for_each_set([&](BlockKernels<Real> const& kernels) {
    std::vector<Real> block(2 * 20, 9);
    kernels.load({source.data(), type, 3, 2, 2}, block.data(), 20);
    EXPECT_EQ(std::vector<Real>(block.begin(), block.begin() + 4), (std::vector<Real>{1, 2, 0, 0}));
    EXPECT_EQ(std::vector<Real>(block.begin() + 20, block.begin() + 24), (std::vector<Real>{4, 5, 0, 0}));
  });
}

struct SmallType {
  ElementType type;
  SmallFloat format;
};
constexpr SmallType kSmallTypes[] = {{ElementType::kBfloat16, kBfloat16Format},
                                     {ElementType::kFloat16, kFloat16Format}};

/// Every value of 16 bits, halfway between it and the next, and just beside that; and NaN with all bits set.
std::vector<float> values_to_round(SmallFloat const& format) {
  std::vector<float> values{std::bit_cast<float>(0x7fffffffU), std::bit_cast<float>(0xffffffffU)};
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    auto const value = static_cast<float>(format.decoded(static_cast<std::uint16_t>(bits)));
    auto const next = static_cast<float>(format.decoded(static_cast<std::uint16_t>(bits + 1)));
    float const halfway = value + (next - value) / 2;
    values.insert(values.end(), {value, halfway, std::nextafter(halfway, 0.F), std::nextafter(halfway, next)});
  }
  return values;
}

TEST(BlockKernels, ReadAndRoundEveryElementOf16Bits) {
  for (auto const& [type, format] : kSmallTypes) {
    std::vector<float> const values = values_to_round(format);
    auto const size = static_cast<std::int64_t>(values.size());
    for (BlockKernels<float> const& kernels : usable_block_kernels<float>()) {
      SCOPED_TRACE(kernels.instruction_set);
      std::vector<std::uint16_t> rounded(values.size());
      kernels.store(values.data(), size, {rounded.data(), type, size, 1, size});
      std::vector<float> read(static_cast<std::size_t>(padded(size)));
      kernels.load({rounded.data(), type, size, 1, size}, read.data(), size);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) {
          ASSERT_TRUE(std::isnan(read[i])) << "element " << i;
          continue;
        }
        ASSERT_EQ(rounded[i], format.encoded(values[i])) << values[i];
        ASSERT_EQ(read[i], format.decoded(rounded[i])) << values[i];
      }
    }
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
