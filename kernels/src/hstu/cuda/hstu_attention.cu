#include "cuda/cuda_check.hpp"
#include "headway/kernels/hstu_attention_cuda.hpp"
#include "hstu/cuda/hopper_backward.hpp"
#include "hstu/cuda/hopper_backward_plan.hpp"
#include "hstu/cuda/hopper_forward.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

/// @throws std::invalid_argument if there is no kernel
template <class Args>
void expect_hopper(Args const& args) {
  std::string why = why_not_for_hopper(args);
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) why = "the device is not of compute capability 9.0";
  if (!why.empty()) throw std::invalid_argument("hstu_attention: no CUDA kernel for this: " + why);
}

/// Kernels add to them.
void clear_weight_gradients(HstuBackwardArgs const& args, CudaStream stream) {
  auto const clear = [stream](void* weights, std::int64_t size) {
    if (weights == nullptr) return;
    check(cudaMemsetAsync(weights, 0, static_cast<std::size_t>(size) * sizeof(float), stream), "cudaMemsetAsync");
  };
  HstuBias const& bias = args.forward.bias;
  clear(args.grad_position_weights, 2 * bias.max_position_distance - 1);
  clear(args.grad_time_weights, bias.num_time_bounds + 1);
}

}  // namespace

std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& /*args*/) { return 16; }

void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace) {
  if (args.sequences.num_queries == 0 || args.num_heads == 0) return;
  expect_hopper(args);
  hopper_forward_async(args, stream, static_cast<std::int32_t*>(workspace));
}

std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& args) {
  return static_cast<std::size_t>(HopperBackwardWorkspace(args.forward).size_bytes);
}

void hstu_attention_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace) {
  HstuSequences const& sequences = args.forward.sequences;
  bool const is_empty = sequences.num_keys == 0 || args.forward.num_heads == 0;
  if (!is_empty) expect_hopper(args);
  clear_weight_gradients(args, stream);
  if (is_empty) return;
  hopper_backward_async(args, stream, workspace);
}

}  // namespace headway::kernels
