// SPDX-License-Identifier: Apache-2.0

// Choice of vector functions by the instruction sets of this processor, made once per process.

#include "headway/kernels/vector_kernels.hpp"

#include "headway/kernels/instruction_set.hpp"
#include "rows/instruction_sets.hpp"

#include <vector>

namespace headway::kernels {
namespace {

std::vector<VectorKernels> find_usable() {
  std::vector<VectorKernels> usable{rows::baseline_vector_kernels()};
#if defined(__x86_64__)
  if (has_avx2()) usable.push_back(rows::avx2_vector_kernels());
  if (has_avx512()) usable.push_back(rows::avx512_vector_kernels());
#endif
  return usable;
}

}  // namespace

std::span<VectorKernels const> usable_vector_kernels() {
  static std::vector<VectorKernels> const usable = find_usable();
  return usable;
}

}  // namespace headway::kernels
