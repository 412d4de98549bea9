#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <string>

namespace headway::kernels {

/// Why kernels for sm_90a are not for these arguments; empty if they are.
[[nodiscard]] std::string why_not_for_hopper(HstuBackwardArgs const& args);

/// Depends on the kernel before in the stream (launch_dependent()). Gradients of weights are 0 before.
/// @param workspace of HopperBackwardWorkspace::size_bytes, cleared as that says
void hopper_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);

/// The same for one dim; each compiled by itself.
template <int kDim>
void hopper_backward_of_dim(HstuBackwardArgs const& args, CudaStream stream, void* workspace);

}  // namespace headway::kernels
