#include "hstu/cpu/block_kernels.hpp"

#include "hstu/cpu/instruction_sets.hpp"

#include <span>
#include <vector>

namespace headway::kernels::hstu {
namespace {

template <class Real>
std::vector<BlockKernels<Real>> find_usable() {
  std::vector<BlockKernels<Real>> usable{baseline_kernels<Real>()};
#if defined(__x86_64__)
  bool const has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) usable.push_back(avx2_kernels<Real>());
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    usable.push_back(avx512_kernels<Real>());
#endif
  return usable;
}

}  // namespace

template <class Real>
std::span<BlockKernels<Real> const> usable_block_kernels() {
  static std::vector<BlockKernels<Real>> const usable = find_usable<Real>();
  return usable;
}

template std::span<BlockKernels<float> const> usable_block_kernels<float>();
template std::span<BlockKernels<double> const> usable_block_kernels<double>();

}  // namespace headway::kernels::hstu
