// SPDX-License-Identifier: Apache-2.0

// SiLU in kernels of layers. For 16-bit elements the fast exp and division are exact enough: their error is far below
// the rounding of the result. A bfloat16 has 8 bits of precision.

#pragma once

#include "elements.hpp"

#include <cmath>
#include <type_traits>

namespace headway::kernels {

/// SiLU of a number and its slope, with the precision that the element type needs.
template <class Element>
struct Silu {
  Real<Element> x, sigmoid;

  __device__ explicit Silu(Real<Element> value) : x(value) {
    if constexpr (sizeof(Element) == 2) {
      sigmoid = __fdividef(1.0F, 1.0F + __expf(-x));
    } else {
      sigmoid = 1 / (1 + std::exp(-x));
    }
  }
  [[nodiscard]] __device__ Real<Element> value() const { return x * sigmoid; }
  [[nodiscard]] __device__ Real<Element> slope() const { return sigmoid * (1 + x * (1 - sigmoid)); }
};

}  // namespace headway::kernels
