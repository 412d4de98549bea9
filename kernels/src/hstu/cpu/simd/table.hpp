// SPDX-License-Identifier: Apache-2.0

// Function table of one instruction set; the files beside this one make it with flags of their own.
//
// The functions have internal linkage, so four copies of them live in one library: one per file and set of flags.
// Only the tables are seen from outside, and block_kernels.cpp picks one when the processor is known.

#pragma once

#include "hstu/cpu/simd/elements.hpp"
#include "hstu/cpu/simd/gemm.hpp"
#include "hstu/cpu/simd/silu.hpp"

namespace headway::kernels::hstu {
namespace {

template <class Element>
constexpr BlockKernels<Element> table_of(char const* instruction_set) {
  using Real = SumOf<Element>;
  return {.instruction_set = instruction_set,
          .gemm = gemm<Element>,
          .compute_p = compute_p<Real>,
          .compute_p_and_ds = compute_p_and_ds<Real>,
          .load = load,
          .load_deep = load_deep,  // Layouts: block_kernels.hpp.
          .store = store,
          .transpose = transpose<Element>};
}

}  // namespace
}  // namespace headway::kernels::hstu
