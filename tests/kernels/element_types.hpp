// SPDX-License-Identifier: Apache-2.0

// Runs a test for each element type of the kernels: float64, float32, bfloat16 and float16.

#pragma once

#include "elements.hpp"

namespace headway::kernels {

template <class Element>
ElementType type_of();
template <>
inline ElementType type_of<double>() {
  return ElementType::kFloat64;
}
template <>
inline ElementType type_of<float>() {
  return ElementType::kFloat32;
}
template <>
inline ElementType type_of<Bfloat16>() {
  return ElementType::kBfloat16;
}
template <>
inline ElementType type_of<Float16>() {
  return ElementType::kFloat16;
}

/// Calls `call.template operator()<Element>()` for each element type.
template <class Call>
void for_each_element_type(Call const& call) {
  for (auto const type :
       {ElementType::kFloat64, ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
    with_element(type, call);
  }
}

}  // namespace headway::kernels
