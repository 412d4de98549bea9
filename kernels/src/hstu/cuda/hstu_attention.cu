#include "cuda/cuda_check.hpp"
#include "headway/kernels/hstu_attention_cuda.hpp"
#include "hstu/cuda/hopper_forward.hpp"

#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

/// @throws std::invalid_argument if there is no kernel
void expect_hopper(HstuForwardArgs const& args) {
  std::string why = why_not_for_hopper(args);
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) why = "the device is not of compute capability 9.0";
  if (!why.empty()) throw std::invalid_argument("hstu_attention: no CUDA kernel for this: " + why);
}

}  // namespace

std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& /*args*/) { return 16; }

void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace) {
  if (args.sequences.num_queries == 0 || args.num_heads == 0) return;
  expect_hopper(args);
  hopper_forward_async(args, stream, static_cast<std::int32_t*>(workspace));
}

}  // namespace headway::kernels
