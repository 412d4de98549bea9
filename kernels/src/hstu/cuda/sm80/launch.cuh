// SPDX-License-Identifier: Apache-2.0

// Launches of the sm_80 passes: one for a forward call, two or three for a backward call (pass.cuh). Each dim is a
// translation unit of its own, as compiling all shapes takes minutes.

#pragma once

#include "headway/base/cuda_check.hpp"
#include "hstu/cuda/sm80/attention.hpp"
#include "hstu/cuda/sm80/pass.cuh"
#include "hstu/cuda/sm80/plan.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels {

/// Launches a pass, and refuses it if the device has too little shared memory.
struct Sm80Launch {
  CudaStream stream = nullptr;

  template <class Shape>
  void operator()(Sm80Params const& params, std::int64_t num_blocks) const {
    auto* const kernel = &sm80_pass_kernel<Shape>;
    auto const shared_bytes = static_cast<int>(sm80_shared_bytes<Shape>(params.bias));
    int const max_bytes = base::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (shared_bytes > max_bytes) {
      throw std::invalid_argument("hstu_attention: this dim with so many time bounds needs " +
                                  std::to_string(shared_bytes) + " bytes of shared memory, and the device has " +
                                  std::to_string(max_bytes));
    }
    base::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                     "cudaFuncSetAttribute");
    kernel<<<static_cast<unsigned>(num_blocks), Shape::kThreads, shared_bytes, stream>>>(params);
    base::check_cuda(cudaGetLastError(), "sm80_pass_kernel");
  }
};

/// Calls visit(T{}) for the element type.
template <class Visit>
auto with_sm80_element(ElementType type, Visit const& visit) {
  if (type == ElementType::kBfloat16) return visit(Bfloat16{});
  if (type == ElementType::kFloat16) return visit(Float16{});
  return visit(float{});
}

template <int kDim>
void sm80_forward_of_dim(HstuForwardArgs const& args, CudaStream stream) {
  with_sm80_element(args.type, [&]<class T>(T /*element*/) { Sm80Plan<T, kDim>(args).forward(Sm80Launch{stream}); });
}

template <int kDim>
std::int64_t sm80_backward_of_dim(HstuBackwardArgs const& args, Sm80Partials const& partials, CudaStream stream) {
  return with_sm80_element(args.forward.type, [&]<class T>(T /*element*/) {
    Sm80Plan<T, kDim> const plan(args.forward);
    plan.backward_of_keys(args, Sm80Launch{stream});
    return plan.backward_of_queries(args, partials, Sm80Launch{stream});
  });
}

}  // namespace headway::kernels
