// SPDX-License-Identifier: Apache-2.0

// Choice of row functions by the instruction sets of this processor, made once per process.
//
// hstu::usable_block_kernels() has asked the processor already. This table follows its list, so both use the same set.

#include "layer/cpu/row_kernels.hpp"

#include "hstu/cpu/block_kernels.hpp"

#include <string_view>
#include <vector>

namespace headway::kernels::layer {
namespace {

template <class Real>
std::vector<RowKernels<Real>> find_usable() {
  std::vector<RowKernels<Real>> usable;
  for (auto const& block_kernels : hstu::usable_block_kernels<Real>()) {
    std::string_view const set = block_kernels.instruction_set;
    if (set == "baseline") usable.push_back(baseline_row_kernels<Real>());
#if defined(__x86_64__)
    if (set == "avx2") usable.push_back(avx2_row_kernels<Real>());
    if (set == "avx512") usable.push_back(avx512_row_kernels<Real>());
#endif
  }
  return usable;
}

}  // namespace

template <class Real>
std::span<RowKernels<Real> const> usable_row_kernels() {
  static std::vector<RowKernels<Real>> const usable = find_usable<Real>();
  return usable;
}

template std::span<RowKernels<float> const> usable_row_kernels<float>();
template std::span<RowKernels<double> const> usable_row_kernels<double>();

}  // namespace headway::kernels::layer
