#include "cuda/cuda_check.hpp"
#include "headway/kernels/hstu_attention_cuda.hpp"
#include "hstu/cuda/hopper_backward.hpp"
#include "hstu/cuda/hopper_backward_plan.hpp"
#include "hstu/cuda/hopper_forward.hpp"
#include "hstu/cuda/portable_attention.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

#if defined(HEADWAY_HAS_HOPPER_KERNELS)
constexpr bool kHasHopperKernels = true;
#else
constexpr bool kHasHopperKernels = false;
#endif

/// Only where the build has kernels for Hopper.
template <class Args>
[[nodiscard]] bool is_for_hopper(Args const& args) {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && why_not_for_hopper(args).empty();
}

/// @throws std::invalid_argument if there is no kernel
void expect_portable(HstuForwardArgs const& args) {
  std::string why = why_not_portable(args);
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 8) why = "the device is of compute capability below 8.0";
  if (!why.empty()) throw std::invalid_argument("hstu_attention: no CUDA kernel for this: " + why);
}

/// Kernels for Hopper add to them.
void clear_weight_gradients(HstuBackwardArgs const& args, CudaStream stream) {
  auto const clear = [stream](void* weights, std::int64_t size) {
    if (weights == nullptr) return;
    check(cudaMemsetAsync(weights, 0, static_cast<std::size_t>(size) * sizeof(float), stream), "cudaMemsetAsync");
  };
  HstuBias const& bias = args.forward.bias;
  if (bias.has_position()) clear(args.grad_position_weights, 2 * bias.max_position_distance - 1);
  if (bias.has_time()) clear(args.grad_time_weights, bias.num_time_bounds + 1);
}

}  // namespace

std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& /*args*/) { return 16; }

void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace) {
  if (args.sequences.num_queries == 0 || args.num_heads == 0) return;
  if constexpr (kHasHopperKernels) {
    if (is_for_hopper(args)) return hopper_forward_async(args, stream, static_cast<std::int32_t*>(workspace));
  }
  expect_portable(args);
  portable_forward_async(args, stream);
}

std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& args) {
  std::size_t const portable = portable_backward_workspace_bytes(args);
  if constexpr (!kHasHopperKernels) return portable;
  int const num_multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  BackwardWork const work = backward_work(args.forward, num_multiprocessors);
  HopperBackwardWorkspace const places(args.forward, work, num_multiprocessors);
  return std::max(portable, static_cast<std::size_t>(places.size_bytes));
}

void hstu_attention_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  HstuSequences const& sequences = args.forward.sequences;
  bool const has_pairs = sequences.num_queries > 0 && sequences.num_keys > 0 && args.forward.num_heads > 0;
  if constexpr (kHasHopperKernels) {
    if (has_pairs && is_for_hopper(args)) {
      clear_weight_gradients(args, stream);
      return hopper_backward_async(args, stream, workspace);
    }
  }
  expect_portable(args.forward);
  portable_backward_async(args, stream, workspace);
}

}  // namespace headway::kernels
