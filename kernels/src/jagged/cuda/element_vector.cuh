// SPDX-License-Identifier: Apache-2.0

// Vectors of elements, as wide as one load: 16 bytes where rows and addresses allow it, else one element. Kernels are
// written for a vector and run for both widths. Example: rows of 6 bfloat16 have 12 bytes, so vectors have one
// element.

#pragma once

#include "elements.hpp"

#include <cstdint>

namespace headway::kernels {

/// Neighbouring columns of a row that are loaded and stored together.
template <class Element, std::uint32_t kSize>
struct alignas(sizeof(Element) * kSize) ElementVector {
  static constexpr std::uint32_t kNumElements = kSize;
  using Sum = Real<Element>;

  Element elements[kSize];

  /// Adds the elements to sums in the accumulation type.
  __device__ void add_to(Sum (&sums)[kSize]) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kSize; ++i) sums[i] += as_real(elements[i]);
  }
  /// Rounds sums to elements.
  __device__ static ElementVector nearest_to(Sum const (&sums)[kSize]) {
    ElementVector vector;
#pragma unroll
    for (std::uint32_t i = 0; i < kSize; ++i) vector.elements[i] = nearest<Element>(sums[i]);
    return vector;
  }
};

/// Calls `call.template operator()<Vector>()` with vectors of 16 bytes if rows and `addresses` are multiples of 16
/// bytes, else with vectors of one element.
template <class Call>
void with_element_vector(ElementType type, std::int64_t num_columns, std::initializer_list<void const*> addresses,
                         Call const& call) {
  auto bits = static_cast<std::uintptr_t>(num_columns * size_of(type));
  for (void const* const address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  with_element(type, [&]<class Element>() {
    if (bits % 16 == 0) {
      call.template operator()<ElementVector<Element, 16 / sizeof(Element)>>();
    } else {
      call.template operator()<ElementVector<Element, 1>>();
    }
  });
}

}  // namespace headway::kernels
