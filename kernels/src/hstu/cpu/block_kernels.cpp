// SPDX-License-Identifier: Apache-2.0

// Choice of block functions by the instruction sets of this processor, made once per process and element type.

#include "hstu/cpu/block_kernels.hpp"

#include "headway/kernels/instruction_set.hpp"
#include "hstu/cpu/instruction_sets.hpp"

#include <span>
#include <vector>

namespace headway::kernels::hstu {
namespace {

template <class Element>
std::vector<BlockKernels<Element>> find_usable() {
  std::vector<BlockKernels<Element>> usable{baseline_kernels<Element>()};
#if defined(__x86_64__)
  if (has_avx2()) usable.push_back(avx2_kernels<Element>());
  if (has_avx512()) usable.push_back(avx512_kernels<Element>());
#endif
  return usable;
}

template <>
std::vector<BlockKernels<Bfloat16Pair>> find_usable() {
  std::vector<BlockKernels<Bfloat16Pair>> usable;
#if defined(__x86_64__)
  if (has_avx512() && __builtin_cpu_supports("avx512bf16")) usable.push_back(avx512bf16_kernels());
#endif
  return usable;
}

}  // namespace

template <class Element>
std::span<BlockKernels<Element> const> usable_block_kernels() {
  static std::vector<BlockKernels<Element>> const usable = find_usable<Element>();
  return usable;
}

template std::span<BlockKernels<float> const> usable_block_kernels<float>();
template std::span<BlockKernels<double> const> usable_block_kernels<double>();
template std::span<BlockKernels<Bfloat16Pair> const> usable_block_kernels<Bfloat16Pair>();

}  // namespace headway::kernels::hstu
