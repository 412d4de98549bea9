// SPDX-License-Identifier: Apache-2.0

// Sums over jagged rows: per sample, per source row (the backward pass of copying), and sums with dense rows.
//
// Values are small integers, whose sums are exact in every type and order, so results must equal plain loops bit by
// bit. Sample lengths are chosen around the chunks into which the kernels cut the work: inside one, ending with one,
// over several.

#include "headway/kernels/jagged_sums.hpp"

#include "element_types.hpp"
#include "jagged_backend.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace headway::kernels {
namespace {

using Numbers = std::vector<std::int64_t>;

class JaggedSums : public JaggedKernels {
 protected:
  std::mt19937 random_{1};

  /// Draws small integers, whose sums are exact in any order.
  template <class Element>
  std::span<Element> draw(std::int64_t size) {
    std::vector<Element> values(static_cast<std::size_t>(size));
    for (auto& value : values) value = nearest<Element>(static_cast<Real<Element>>(random_() % 5) - 2);
    return backend_->array(values);
  }

  template <class Element>
  static std::vector<double> reals(std::span<Element> elements) {
    std::vector<double> values;
    for (auto const element : elements) values.push_back(as_real(element));
    return values;
  }

  /// Compares sums and means of samples with plain loops, bit by bit.
  template <class Element>
  void expect_reduced(Numbers const& lengths, std::int64_t num_columns) {
    auto const offsets = backend_->array(offsets_of(lengths));
    auto const num_samples = static_cast<std::int64_t>(lengths.size());
    auto const values = draw<Element>(offsets.back() * num_columns);
    auto const sums = backend_->room<Element>(num_samples * num_columns);
    auto const means = backend_->room<Element>(num_samples * num_columns);
    JaggedRows const rows{.type = type_of<Element>(),
                          .num_samples = num_samples,
                          .num_rows = offsets.back(),
                          .num_columns = num_columns,
                          .offsets = offsets.data(),
                          .values = values.data()};
    backend_->reduce_samples(rows, SampleReduction::kSum, sums.data());
    backend_->reduce_samples(rows, SampleReduction::kMean, means.data());
    std::vector<double> expected_sums, expected_means;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      for (std::int64_t column = 0; column < num_columns; ++column) {
        Real<Element> sum = 0;
        for (std::int64_t row = offsets[b]; row < offsets[b + 1]; ++row) {
          sum += as_real(values[static_cast<std::size_t>(row * num_columns + column)]);
        }
        auto const length = static_cast<Real<Element>>(std::max<std::int64_t>(lengths[b], 1));
        expected_sums.push_back(as_real(nearest<Element>(sum)));
        expected_means.push_back(as_real(nearest<Element>(sum / length)));
      }
    }
    EXPECT_EQ(reals(sums), expected_sums) << num_columns << " columns of " << sizeof(Element) << " bytes";
    EXPECT_EQ(reals(means), expected_means) << num_columns << " columns of " << sizeof(Element) << " bytes";
  }
};

TEST_P(JaggedSums, SamplesAreReducedWhateverTheirLengths) {
  for_each_element_type([&]<class Element>() {
    for (std::int64_t const num_columns : {1, 3, 8, 40}) {
      // Samples that are short, empty, inside a chunk, end with a chunk, or span several chunks.
      expect_reduced<Element>({0, 3, 0, 0, 29, 32, 1, 200, 0, 64, 63, 7, 0}, num_columns);
    }
  });
}

TEST_P(JaggedSums, SamplesAreReducedWhereverTheyLieInWhatThreadsShare) {
  Numbers lengths(600, 0);
  for (std::size_t b = 100; b < 400; ++b) lengths[b] = static_cast<std::int64_t>(random_() % 30);
  lengths[450] = 1000;
  for (std::int64_t const num_columns : {4, 5, 132}) expect_reduced<float>(lengths, num_columns);
  expect_reduced<Bfloat16>({70, 1, 0, 40}, 16);
}

TEST_P(JaggedSums, SumsReadFromMisalignedRows) {
  Numbers const lengths{3, 0, 20, 1};
  auto const offsets = backend_->array(offsets_of(lengths));
  auto const values = draw<float>(24 * 4 + 1);
  auto const sums = backend_->room<float>(4 * 4);
  JaggedRows const rows{.num_samples = 4,
                        .num_rows = 24,
                        .num_columns = 4,
                        .offsets = offsets.data(),
                        .values = values.subspan(1).data()};
  backend_->reduce_samples(rows, SampleReduction::kSum, sums.data());
  std::vector<float> expected(sums.size());
  for (std::size_t b = 0; b < 4; ++b) {
    for (auto i = static_cast<std::size_t>(4 * offsets[b]); i < static_cast<std::size_t>(4 * offsets[b + 1]); ++i) {
      expected[4 * b + i % 4] += values[1 + i];
    }
  }
  EXPECT_EQ(to_vector(sums), expected);
}

TEST_P(JaggedSums, WithoutRowsOrSamplesSumsAreZeroOrNone) {
  expect_reduced<float>({0, 0, 0}, 4);
  expect_reduced<float>({}, 4);
  expect_reduced<float>({2, 1}, 0);
}

TEST_P(JaggedSums, DenseRowsAreAddedAsFarAsTheyGo) {
  Numbers const lengths{2, 0, 7, 3, 1};
  constexpr std::int64_t kMost = 3;
  auto const offsets = backend_->array(offsets_of(lengths));
  for_each_element_type([&]<class Element>() {
    for (std::int64_t const num_columns : {1, 5, 8, 64}) {
      auto const values = draw<Element>(offsets.back() * num_columns);
      auto const dense = draw<Element>(5 * kMost * num_columns);
      auto const out = backend_->room<Element>(offsets.back() * num_columns);
      JaggedRows const rows{.type = type_of<Element>(),
                            .num_samples = 5,
                            .num_rows = offsets.back(),
                            .num_columns = num_columns,
                            .offsets = offsets.data(),
                            .values = values.data()};
      backend_->add_dense(rows, dense.data(), kMost, out.data());
      std::vector<double> expected = reals(values);
      for (std::int64_t b = 0; b < 5; ++b) {
        std::int64_t const size = std::min(lengths[static_cast<std::size_t>(b)], kMost) * num_columns;
        for (std::int64_t i = 0; i < size; ++i) {
          expected[static_cast<std::size_t>(offsets[static_cast<std::size_t>(b)] * num_columns + i)] +=
              as_real(dense[static_cast<std::size_t>(b * kMost * num_columns + i)]);
        }
      }
      EXPECT_EQ(reals(out), expected);
    }
  });
}

TEST_P(JaggedSums, CopiesOfARowAddUpAndRowsWithoutAnyAreZero) {
  // 2 features and 3 samples are copied to features 1 1 0 and samples 2 0 2; sample 1 is copied nowhere.
  Numbers const lengths{2, 1, 3, 0, 2, 40};
  Numbers const features{1, 1, 0}, samples{2, 0, 2};
  Numbers copied_lengths;
  for (auto const f : features) {
    for (auto const b : samples) copied_lengths.push_back(lengths[static_cast<std::size_t>(f * 3 + b)]);
  }
  auto const offsets = backend_->array(offsets_of(lengths)),
             copied_offsets = backend_->array(offsets_of(copied_lengths));
  // CSR lists of the copies of each feature and of each sample.
  auto const f_offsets = backend_->array(Numbers{0, 1, 3}), f_indices = backend_->array(Numbers{2, 0, 1});
  auto const b_offsets = backend_->array(Numbers{0, 1, 1, 3}), b_indices = backend_->array(Numbers{1, 0, 2});
  CopiedItems const items{.num_features = 2,
                          .num_samples = 3,
                          .num_rows = offsets.back(),
                          .offsets = offsets.data(),
                          .num_copied_samples = 3,
                          .num_copied_rows = copied_offsets.back(),
                          .copied_offsets = copied_offsets.data(),
                          .features = {f_offsets.data(), f_indices.data()},
                          .samples = {b_offsets.data(), b_indices.data()}};
  for_each_element_type([&]<class Element>() {
    for (std::int64_t const num_columns : {1, 6, 16}) {
      auto const copies = draw<Element>(copied_offsets.back() * num_columns);
      auto const sums = backend_->room<Element>(offsets.back() * num_columns);
      CopiedRows const tensor{
          .type = type_of<Element>(), .num_columns = num_columns, .copies = copies.data(), .sums = sums.data()};
      std::vector<double> expected(sums.size());
      for (std::size_t copy = 0; copy < copied_lengths.size(); ++copy) {
        auto const item = static_cast<std::size_t>(features[copy / 3] * 3 + samples[copy % 3]);
        for (std::int64_t i = 0; i < copied_lengths[copy] * num_columns; ++i) {
          expected[static_cast<std::size_t>(offsets[item] * num_columns + i)] +=
              as_real(copies[static_cast<std::size_t>(copied_offsets[copy] * num_columns + i)]);
        }
      }
      backend_->sum_copies(items, {&tensor, 1});
      EXPECT_EQ(reals(sums), expected);
    }
  });
}

// Without CSR lists, each feature and each sample has one copy: itself.
TEST_P(JaggedSums, EntriesWithoutListsAreCopiedInTheirPlaces) {
  auto const offsets = backend_->array(Numbers{0, 2, 3});
  auto const copies = draw<float>(3);
  auto const sums = backend_->room<float>(3);
  CopiedItems const items{.num_features = 1,
                          .num_samples = 2,
                          .num_rows = 3,
                          .offsets = offsets.data(),
                          .num_copied_samples = 2,
                          .num_copied_rows = 3,
                          .copied_offsets = offsets.data()};
  CopiedRows const tensor{.num_columns = 1, .copies = copies.data(), .sums = sums.data()};
  backend_->sum_copies(items, {&tensor, 1});
  EXPECT_EQ(to_vector(sums), to_vector(copies));
}

INSTANTIATE_TEST_SUITE_P(Backends, JaggedSums, testing::ValuesIn(jagged_backends()), name_of_backend<JaggedBackend>);

TEST(Elements, AllOf16BitsSurviveTheWayToRealAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    Float16 const half{static_cast<std::uint16_t>(bits)};
    Bfloat16 const brain{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(as_real(half))) {
      ASSERT_EQ(nearest<Float16>(as_real(half)).bits, half.bits);
    }
    if (!std::isnan(as_real(brain))) {
      ASSERT_EQ(nearest<Bfloat16>(as_real(brain)).bits, brain.bits);
    }
  }
}

TEST(Elements, RoundingGoesToTheNearestAndOfTwoToTheEvenOne) {
  EXPECT_EQ(nearest<Float16>(1 + 0x1p-11F).bits, 0x3c00);    // Midpoint between 1 and the next value.
  EXPECT_EQ(nearest<Float16>(1 + 0x1.8p-10F).bits, 0x3c02);  // Midpoint that rounds up to the even value.
  EXPECT_EQ(nearest<Float16>(0x1p-25F).bits, 0);             // Midpoint between 0 and the smallest value.
  EXPECT_EQ(nearest<Float16>(0x1.8p-25F).bits, 1);
  EXPECT_EQ(nearest<Float16>(65519.0F).bits, 0x7bff);  // Rounds to the largest finite value.
  EXPECT_EQ(nearest<Float16>(65520.0F).bits, 0x7c00);  // Rounds to infinity.
  EXPECT_EQ(nearest<Bfloat16>(1 + 0x1p-8F).bits, 0x3f80);
  EXPECT_EQ(nearest<Bfloat16>(1 + 0x1.8p-7F).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(as_real(nearest<Float16>(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(as_real(nearest<Bfloat16>(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace headway::kernels
