#pragma once

#include "hstu/cpu/simd/elements.hpp"
#include "hstu/cpu/simd/multiply.hpp"
#include "hstu/cpu/simd/weigh.hpp"

namespace headway::kernels::hstu {
namespace {

template <class Real>
constexpr BlockKernels<Real> table_of(char const* instruction_set) {
  return {.instruction_set = instruction_set,
          .multiply = multiply<Real>,
          .weigh = weigh<Real>,
          .weigh_with_gradient = weigh_with_gradient<Real>,
          .load = load,
          .store = store,
          .transpose = transpose<Real>};
}

}  // namespace
}  // namespace headway::kernels::hstu
