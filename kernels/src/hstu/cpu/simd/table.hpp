#pragma once

#include "hstu/cpu/simd/elements.hpp"
#include "hstu/cpu/simd/multiply.hpp"
#include "hstu/cpu/simd/weigh.hpp"

namespace headway::kernels::hstu {
namespace {

template <class Element>
constexpr BlockKernels<Element> table_of(char const* instruction_set) {
  using Real = SumOf<Element>;
  return {.instruction_set = instruction_set,
          .multiply = multiply<Element>,
          .weigh = weigh<Real>,
          .weigh_with_gradient = weigh_with_gradient<Real>,
          .load = load,
          .load_deep = load_deep,
          .store = store,
          .transpose = transpose<Element>};
}

}  // namespace
}  // namespace headway::kernels::hstu
