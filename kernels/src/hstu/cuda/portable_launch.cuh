#pragma once

#include "cuda/cuda_check.hpp"
#include "hstu/cuda/portable_attention.hpp"
#include "hstu/cuda/portable_pass.cuh"
#include "hstu/cuda/portable_plan.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels {

/// Launches a pass, and refuses it if the device has too little shared memory.
struct PortableLaunch {
  CudaStream stream = nullptr;

  template <class Shape>
  void operator()(PortableParams const& params, std::int64_t num_blocks) const {
    auto* const kernel = &portable_pass_kernel<Shape>;
    auto const shared_bytes = static_cast<int>(portable_shared_bytes<Shape>(params.bias));
    int const most_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (shared_bytes > most_bytes) {
      throw std::invalid_argument("hstu_attention: this dim with so many time bounds needs " +
                                  std::to_string(shared_bytes) + " bytes of shared memory, and the device has " +
                                  std::to_string(most_bytes));
    }
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "cudaFuncSetAttribute");
    kernel<<<static_cast<unsigned>(num_blocks), Shape::kThreads, shared_bytes, stream>>>(params);
    check(cudaGetLastError(), "portable_pass_kernel");
  }
};

/// Calls visit(T{}) for the element type.
template <class Visit>
auto with_portable_element(ElementType type, Visit const& visit) {
  if (type == ElementType::kBfloat16) return visit(Bfloat16{});
  if (type == ElementType::kFloat16) return visit(Float16{});
  return visit(float{});
}

template <int kDim>
void portable_forward_of_dim(HstuForwardArgs const& args, CudaStream stream) {
  with_portable_element(args.type,
                        [&]<class T>(T /*element*/) { PortablePlan<T, kDim>(args).forward(PortableLaunch{stream}); });
}

template <int kDim>
std::int64_t portable_backward_of_dim(HstuBackwardArgs const& args, PortablePartials const& partials,
                                      CudaStream stream) {
  return with_portable_element(args.forward.type, [&]<class T>(T /*element*/) {
    PortablePlan<T, kDim> const plan(args.forward);
    plan.backward_of_keys(args, PortableLaunch{stream});
    return plan.backward_of_queries(args, partials, PortableLaunch{stream});
  });
}

}  // namespace headway::kernels
