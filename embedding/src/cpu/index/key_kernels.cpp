// SPDX-License-Identifier: Apache-2.0

// Choice of lookup kernels by the instruction sets of this processor, made once per process.

#include "cpu/index/key_kernels.hpp"

#include "headway/kernels/instruction_set.hpp"

#include <vector>

namespace headway::embedding {
namespace {

std::vector<KeyKernels> find_usable() {
  std::vector<KeyKernels> usable{baseline_key_kernels()};
#if defined(__x86_64__)
  if (kernels::has_avx2()) usable.push_back(avx2_key_kernels());
  if (kernels::has_avx512()) usable.push_back(avx512_key_kernels());
#endif
  return usable;
}

}  // namespace

std::span<KeyKernels const> usable_key_kernels() {
  static std::vector<KeyKernels> const usable = find_usable();
  return usable;
}

}  // namespace headway::embedding
