// SPDX-License-Identifier: Apache-2.0

// SiLU and split of rows against plain loops. The columns of x are split into consecutive parts, each copied or
// activated by SiLU. The backward pass joins the gradients of the parts, and sums the columns of the result.

#include "headway/kernels/silu_split.hpp"

#include "layer_backend.hpp"
#include "layer_numbers.hpp"

#include <numeric>
#include <stdexcept>

namespace headway::kernels {
namespace {

/// Parts of a test: columns, and whether SiLU is applied. There are `gap` elements between the rows of inputs.
struct SplitCase {
  std::vector<std::int64_t> widths;
  std::vector<bool> activated;
  std::int64_t num_rows, gap = 0;
};

class SiluSplits : public LayerKernels {
 protected:
  std::mt19937 random_{7};

  /// Compares both passes with plain loops.
  template <class Element>
  void expect_as_defined(SplitCase const& of) {
    std::int64_t const columns = std::accumulate(of.widths.begin(), of.widths.end(), std::int64_t{0});
    DrawnRows<Element> const x(random_, of.num_rows, columns, of.gap);
    StridedRows<void const*> const rows{backend_->array(x.elements).data(), x.stride};

    std::vector<SplitPart<void*>> parts;
    std::vector<SplitPart<void const*>> grad_parts;
    std::vector<std::span<Element>> outs;
    std::vector<DrawnRows<Element>> grads;
    for (std::size_t i = 0; i < of.widths.size(); ++i) {
      std::int64_t const width = of.widths[i];
      outs.push_back(backend_->room<Element>(of.num_rows * width));
      parts.push_back({{outs.back().data(), width}, width, of.activated[i]});
      grads.emplace_back(random_, of.num_rows, width, of.gap);
      grad_parts.push_back({{backend_->array(grads.back().elements).data(), width + of.gap}, width, of.activated[i]});
    }
    auto const grad_x = backend_->room<Element>(of.num_rows * columns);
    auto const sums = backend_->room<Real<Element>>(columns);
    auto const type = type_of<Element>();
    backend_->silu_split({.type = type, .num_rows = of.num_rows, .x = rows, .parts = parts});
    backend_->silu_split_backward({.type = type,
                                   .num_rows = of.num_rows,
                                   .x = rows,
                                   .grad_parts = grad_parts,
                                   .grad_x = grad_x.data(),
                                   .column_sums = sums.data()});

    std::vector<double> expected_grad(static_cast<std::size_t>(of.num_rows * columns));
    std::vector<double> expected_sums(static_cast<std::size_t>(columns));
    std::int64_t first = 0;
    for (std::size_t i = 0; i < of.widths.size(); ++i) {
      std::vector<double> expected;
      for (std::int64_t row = 0; row < of.num_rows; ++row) {
        for (std::int64_t column = 0; column < of.widths[i]; ++column) {
          double const input = x.at(row, first + column);
          expected.push_back(of.activated[i] ? silu(input) : input);
          double const grad = grads[i].at(row, column) * (of.activated[i] ? silu_slope(input) : 1);
          expected_grad[static_cast<std::size_t>(row * columns + first + column)] = grad;
          expected_sums[static_cast<std::size_t>(first + column)] += grad;
        }
      }
      expect_near<Element>(outs[i], expected, "part");
      first += of.widths[i];
    }
    expect_near<Element>(grad_x, expected_grad, "grad_x");
    // SiLU of 16-bit elements is a little less exact than float32, which the tolerance of float32 covers.
    std::vector<float> const found(sums.begin(), sums.end());
    expect_near<float>(found, expected_sums, "column sums");
  }

  void expect_as_defined_in_all_types(SplitCase const& of) {
    for_each_element_type([&]<class Element>() { expect_as_defined<Element>(of); });
  }
};

TEST_P(SiluSplits, AreAsDefinedInEachType) {
  expect_as_defined_in_all_types({.widths = {64, 64, 32, 32}, .activated = {true, true, true, true}, .num_rows = 75});
  expect_as_defined_in_all_types({.widths = {64, 64, 32, 32}, .activated = {true, false, false, false}, .num_rows = 9});
}

TEST_P(SiluSplits, TakePartsOfAnyWidth) {
  expect_as_defined_in_all_types({.widths = {3, 0, 301, 1}, .activated = {true, true, false, true}, .num_rows = 20});
  expect_as_defined_in_all_types({.widths = {0, 512}, .activated = {false, true}, .num_rows = 3});
  expect_as_defined_in_all_types(
      {.widths = {8, 8, 8, 8, 8, 8, 8, 8}, .activated = {1, 0, 1, 0, 1, 0, 1, 0}, .num_rows = 5});
}

TEST_P(SiluSplits, ReadRowsThatLieApart) {
  for (std::int64_t const gap : {1, 8}) {
    expect_as_defined_in_all_types({.widths = {16, 24}, .activated = {true, false}, .num_rows = 40, .gap = gap});
  }
}

TEST_P(SiluSplits, OfNoRowsHaveSumsOfZero) {
  expect_as_defined_in_all_types({.widths = {16, 5}, .activated = {true, false}, .num_rows = 0});
}

TEST_P(SiluSplits, RefuseTooManyParts) {
  std::vector<SplitPart<void*>> const parts(kMaxSplitParts + 1);
  EXPECT_THROW(backend_->silu_split({.parts = parts}), std::invalid_argument);
  EXPECT_THROW(backend_->silu_split({}), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(OnEachBackend, SiluSplits, testing::ValuesIn(layer_backends()), name_of_backend<LayerBackend>);

}  // namespace
}  // namespace headway::kernels
