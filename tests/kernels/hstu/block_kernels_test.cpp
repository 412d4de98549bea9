// SPDX-License-Identifier: Apache-2.0

// BlockKernels of every instruction set that this processor supports, function by function.
//
// They are the inner loops of HSTU attention on the CPU: products, scores and conversions of blocks of at most 64
// queries and 64 keys. A Bfloat16Pair is two neighbours along the summed index of a product, which one instruction
// multiplies.

#include "hstu/cpu/block_kernels.hpp"

#include "jagged_tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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
  /// Calls `visit` with the functions of each supported instruction set.
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

  static constexpr Real kUnit = std::numeric_limits<Real>::epsilon();  ///< Unit of rounding of the accumulation type.

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
      // Kernels take kRowStep rows at a time, so `a` and `c` have room behind their last row.
      std::int64_t const room = (rows + kRowStep) * depth, stride = padded(columns) + 1;
      std::vector<Real> const a = this->random_block(room), b = this->random_block(depth * stride);
      std::vector<Real> const before = this->random_block((rows + kRowStep) * stride);
      for (bool const is_transposed : {false, true})
        for (Into const into : {Into::kReplace, Into::kAdd}) {
          std::vector<Real> c = before;
          std::int64_t const row_stride = is_transposed ? 1 : depth;
          std::int64_t const depth_stride = is_transposed ? rows + kRowStep - 1 : 1;
          kernels.gemm(
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

/// Block of scores with a bias and a mask. `seen` has the range of keys that each query sees, and its own key. Key 0 of
/// the block has index kFirstKey in its sequence.
template <class Real>
struct Scores {
  std::vector<Real> s, bias;
  SeenKeys<Real> seen{};
  static constexpr std::int64_t kNumKeys = 40, kNumQueries = 50;
  static constexpr MaskIndex<Real> kFirstKey = 100;
  static constexpr Real kAlpha = Real(1.5), kScale = Real(0.25);

  Scores(std::vector<Real> values, std::vector<Real> added) : s(std::move(values)), bias(std::move(added)) {
    for (MaskIndex<Real> query = 0; query < kNumQueries; ++query) {
      seen.begin[query] = kFirstKey + query / 4;
      seen.end[query] = kFirstKey + query / 2;
      seen.self[query] = kFirstKey + query;
    }
  }

  ScoreBlock<Real> block() { return {kNumKeys, kNumQueries, s.data(), bias.data(), &seen, kFirstKey, kAlpha, kScale}; }

  /// Calls visit(index, alpha * (score + bias), is it visible?) for each pair.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::int64_t key = 0; key < kNumKeys; ++key)
      for (std::int64_t query = 0; query < kNumQueries; ++query) {
        auto const at = static_cast<std::size_t>(key * kBlockSize + query);
        bool const is_seen = (key >= query / 4 && key < query / 2) || key == query;
        visit(at, double{(s[at] + bias[at]) * kAlpha}, is_seen);
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
    kernels.compute_p(weighed.block());
    kernels.compute_p_and_ds(with_gradient.block(), gradients.data());
    given.for_each([&](std::size_t at, double x, bool is_seen) {
      double const s = 1 / (1 + std::exp(-x)), weight = is_seen ? x * s * given.kScale : 0;
      double const slope = is_seen ? s * (1 + x * (1 - s)) * given.kScale * given.kAlpha : 0;
      ASSERT_NEAR(weighed.s[at], weight, 8 * this->kUnit * std::abs(weight)) << "x = " << x;
      ASSERT_EQ(with_gradient.s[at], weighed.s[at]) << "x = " << x;
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
    kernels.transpose(block.data(), 20, 5, 17, transposed.data(), kBlockSize);  // 5 rows of 17, which are 20 apart.
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
    // 2 rows of 2 columns, 3 apart in the source and 20 apart in the block.
    kernels.load({source.data(), type, 3, 2, 2}, block.data(), 20);
    EXPECT_EQ(std::vector<Real>(block.begin(), block.begin() + 4), (std::vector<Real>{1, 2, 0, 0}));
    EXPECT_EQ(std::vector<Real>(block.begin() + 20, block.begin() + 24), (std::vector<Real>{4, 5, 0, 0}));
  });
}

/// 16-bit element type with its format.
struct SmallType {
  ElementType type;
  SmallFloat format;
};
constexpr SmallType kSmallTypes[] = {{ElementType::kBfloat16, kBfloat16Format},
                                     {ElementType::kFloat16, kFloat16Format}};

/// Values that probe rounding: every 16-bit value, the midpoint to the next one, its neighbours on both sides, and NaN
/// with all bits set.
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
      // All values are one row.
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

/// Kernels for bfloat16 pairs; skipped if the processor does not support them.
class PairKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (usable_block_kernels<Bfloat16Pair>().empty()) GTEST_SKIP() << "this processor does not multiply bfloat16 pairs";
  }

  static BlockKernels<Bfloat16Pair> const& kernels() { return usable_block_kernels<Bfloat16Pair>().back(); }

  static double first_of(Bfloat16Pair pair) {
    return kBfloat16Format.decoded(static_cast<std::uint16_t>(pair.bits & 0xffffU));
  }
  static double second_of(Bfloat16Pair pair) {
    return kBfloat16Format.decoded(static_cast<std::uint16_t>(pair.bits >> 16U));
  }

  /// Random bfloat16 numbers between -1 and 1, none of them 0.
  std::vector<std::uint16_t> random_numbers(std::int64_t size) {
    std::uniform_real_distribution<> distribution(0.1, 1);
    std::vector<std::uint16_t> numbers(static_cast<std::size_t>(size));
    for (std::uint16_t& number : numbers)
      number = kBfloat16Format.encoded(distribution(random_) * (random_() % 2 == 0 ? 1 : -1));
    return numbers;
  }

  std::vector<Bfloat16Pair> random_pairs(std::int64_t size) {
    std::vector<std::uint16_t> const numbers = random_numbers(2 * size);
    std::vector<Bfloat16Pair> pairs(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < pairs.size(); ++i)
      pairs[i].bits = numbers[2 * i] | std::uint32_t{numbers[2 * i + 1]} << 16U;
    return pairs;
  }

 private:
  std::mt19937 random_{1};
};

TEST_F(PairKernels, MultiplyAsALoopDoes) {
  constexpr std::int64_t kRows = 13, kColumns = 33, kDepth = 9, kRoom = kRows + kRowStep, kStride = padded(kColumns);
  std::vector<Bfloat16Pair> const a = random_pairs(kRoom * kDepth), b = random_pairs(kDepth * kStride);
  OperandA<Bfloat16Pair> const rows{a.data(), kDepth}, columns{a.data(), 1, kRoom};
  for (OperandA<Bfloat16Pair> const& factor : {rows, columns})
    for (Into const into : {Into::kReplace, Into::kAdd}) {
      std::vector<float> c(kRoom * kStride, 0.5F);
      kernels().gemm({kRows, kColumns, kDepth, factor, {b.data(), kStride}, {c.data(), kStride}, into});
      for (std::int64_t row = 0; row < kRows; ++row)
        for (std::int64_t column = 0; column < kColumns; ++column) {
          double sum = into == Into::kAdd ? 0.5 : 0;
          for (std::int64_t k = 0; k < kDepth; ++k) {
            Bfloat16Pair const x = a[static_cast<std::size_t>(row * factor.row_stride + k * factor.column_stride)];
            Bfloat16Pair const y = b[static_cast<std::size_t>(k * kStride + column)];
            sum += first_of(x) * first_of(y) + second_of(x) * second_of(y);
          }
          ASSERT_NEAR(c[static_cast<std::size_t>(row * kStride + column)], sum, 2 * (kDepth + 1) * 0x1p-23);
        }
    }
}

TEST_F(PairKernels, LoadNeighboursOfARowOrOfAColumn) {
  constexpr std::int64_t kNumRows = 5, kColumns = 7, kStride = 9, kBlockStride = 20;
  std::vector<std::uint16_t> const source = random_numbers(kNumRows * kStride);
  ElementRows<void const*> const rows{source.data(), ElementType::kBfloat16, kStride, kNumRows, kColumns};
  auto const at = [&](std::int64_t row, std::int64_t column) -> double {
    bool const is_there = row < kNumRows && column < kColumns;
    return is_there ? kBfloat16Format.decoded(source[static_cast<std::size_t>(row * kStride + column)]) : 0;
  };
  // load() pairs neighbours of a row, load_deep() neighbours of a column.
  std::vector<Bfloat16Pair> along(kNumRows * kBlockStride, {~0U}), deep = along;
  kernels().load(rows, along.data(), kBlockStride);
  kernels().load_deep(rows, deep.data(), kBlockStride);
  for (std::int64_t row = 0; row < kNumRows; ++row)
    for (std::int64_t i = 0; i < padded(kColumns) / 2; ++i) {
      Bfloat16Pair const pair = along[static_cast<std::size_t>(row * kBlockStride + i)];
      EXPECT_EQ(first_of(pair), at(row, 2 * i));
      EXPECT_EQ(second_of(pair), at(row, 2 * i + 1));
    }
  for (std::int64_t i = 0; i < (kNumRows + 1) / 2; ++i)
    for (std::int64_t column = 0; column < padded(kColumns); ++column) {
      Bfloat16Pair const pair = deep[static_cast<std::size_t>(i * kBlockStride + column)];
      EXPECT_EQ(first_of(pair), at(2 * i, column));
      EXPECT_EQ(second_of(pair), at(2 * i + 1, column));
    }
}

TEST_F(PairKernels, RoundNeighboursOfARowOrOfAColumn) {
  constexpr std::int64_t kNumRows = 33, kColumns = 37;
  std::vector<float> const values = values_to_round(kBfloat16Format);
  // The instruction that converts pairs (VCVTNE2PS2BF16) takes denormals as 0.
  auto const rounded = [](float value) {
    return std::abs(value) < 0x1p-126F ? 0 : kBfloat16Format.decoded(kBfloat16Format.encoded(value));
  };
  auto const expect_same = [](double actual, double expected) {
    ASSERT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected))) << actual << " " << expected;
  };
  std::vector<float> block(kBlockSize * kBlockSize);
  std::vector<Bfloat16Pair> of_rows(kBlockSize / 2 * kBlockSize), of_columns = of_rows;
  for (std::size_t begin = 0; begin + block.size() <= values.size(); begin += block.size()) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(begin), block.size(), block.begin());
    kernels().pair_rows(block.data(), kNumRows, kColumns, of_rows.data());
    kernels().pair_columns(block.data(), kNumRows, kColumns, of_columns.data());
    for (std::int64_t row = 0; row < kNumRows; ++row)
      for (std::int64_t column = 0; column < kColumns; ++column) {
        double const expected = rounded(block[static_cast<std::size_t>(row * kBlockSize + column)]);
        Bfloat16Pair const in_column = of_rows[static_cast<std::size_t>(row / 2 * kBlockSize + column)];
        Bfloat16Pair const in_row = of_columns[static_cast<std::size_t>(row * kBlockSize / 2 + column / 2)];
        expect_same(row % 2 == 0 ? first_of(in_column) : second_of(in_column), expected);
        expect_same(column % 2 == 0 ? first_of(in_row) : second_of(in_row), expected);
      }
    // The last pair of an odd number of values is padded with 0.
    for (std::int64_t column = 0; column < kColumns; ++column)
      ASSERT_EQ(second_of(of_rows[static_cast<std::size_t>(kNumRows / 2 * kBlockSize + column)]), 0);
    for (std::int64_t row = 0; row < kNumRows; ++row)
      ASSERT_EQ(second_of(of_columns[static_cast<std::size_t>(row * kBlockSize / 2 + kColumns / 2)]), 0);
  }
}

}  // namespace
}  // namespace headway::kernels::hstu
