// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "elements.hpp"
#include "headway/kernels/gated_norm.hpp"
#include "headway/kernels/silu_split.hpp"

#include <stdexcept>

namespace headway::kernels {

/// Arithmetic type of an element type.
constexpr ElementType real_type(ElementType type) {
  return type == ElementType::kFloat64 ? ElementType::kFloat64 : ElementType::kFloat32;
}

inline void expect_argument(bool is_good, char const* what) {
  if (!is_good) throw std::invalid_argument(what);
}

inline void expect_arguments(GatedNorm const& args) {
  expect_argument(args.num_columns >= 1, "gated_norm: rows must have a column at least");
  expect_argument((args.gate.data == nullptr) == (args.form == GateForm::kNone) || args.num_rows == 0,
                  "gated_norm: a gate and its form go together");
  expect_argument(args.weight_type == args.type || args.weight_type == real_type(args.type),
                  "gated_norm: weight and bias must be of the type of x, or float32 beside one of 16 bits");
}

/// Total number of columns of all parts.
template <class Pointer>
std::int64_t columns_of(std::span<SplitPart<Pointer> const> parts) {
  std::int64_t sum = 0;
  for (auto const& part : parts) sum += part.num_columns;
  return sum;
}

template <class Pointer>
void expect_parts(std::span<SplitPart<Pointer> const> parts) {
  expect_argument(!parts.empty() && parts.size() <= kMaxSplitParts, "silu_split: there must be from 1 to 8 parts");
  for (auto const& part : parts) expect_argument(part.num_columns >= 0, "silu_split: a part has fewer than 0 columns");
}

}  // namespace headway::kernels
