// SPDX-License-Identifier: Apache-2.0

// Random inputs, tolerances and reference functions of the tests of layer kernels.

#pragma once

#include "element_types.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace headway::kernels {

/// Random rows, rounded to elements, with `gap` elements between rows.
template <class Element>
struct DrawnRows {
  std::int64_t num_columns, stride;
  std::vector<Element> elements;

  DrawnRows(std::mt19937& random, std::int64_t num_rows, std::int64_t columns, std::int64_t gap = 0)
      : num_columns(columns), stride(columns + gap) {
    std::normal_distribution<double> distribution(0.3, 1.0);
    for (std::int64_t i = 0; i < num_rows * stride; ++i) {
      elements.push_back(nearest<Element>(static_cast<Real<Element>>(distribution(random))));
    }
  }
  [[nodiscard]] double at(std::int64_t row, std::int64_t column) const {
    return as_real(elements[static_cast<std::size_t>(row * stride + column)]);
  }
};

/// Tolerance, relative to 1 + |expected|, for results that are rounded once.
template <class Element>
constexpr double kRounding = 1e-11;
template <>
inline constexpr double kRounding<float> = 3e-5;
template <>
inline constexpr double kRounding<Bfloat16> = 0x1p-8;
template <>
inline constexpr double kRounding<Float16> = 0x1p-10;

template <class Element>
void expect_near(std::span<Element const> found, std::vector<double> const& expected, char const* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double const tolerance = kRounding<Element> * (1 + std::abs(expected[i]));
    ASSERT_NEAR(as_real(found[i]), expected[i], tolerance) << what << " " << i;
  }
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
inline double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

}  // namespace headway::kernels
