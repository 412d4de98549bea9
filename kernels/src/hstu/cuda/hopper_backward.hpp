#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <string>

namespace headway::kernels {

/// Reason why the sm_90a kernels do not take these arguments; empty if they do.
[[nodiscard]] std::string why_not_for_hopper(HstuBackwardArgs const& args);

/// Launches the backward kernels as dependents of the kernel before in the stream (launch_dependent()). Gradients of
/// bias weights must be 0 before.
/// @param workspace HopperBackwardWorkspace::size_bytes bytes, of which the first cleared_bytes are 0
void hopper_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);

/// The same for one dim. Each dim is a translation unit of its own.
template <int kDim>
void hopper_backward_of_dim(HstuBackwardArgs const& args, CudaStream stream, void* workspace);

}  // namespace headway::kernels
