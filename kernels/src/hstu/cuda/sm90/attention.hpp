// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstdint>
#include <string>

namespace headway::kernels {

/// Reason why the sm_90a kernels do not take these arguments; empty if they do.
[[nodiscard]] std::string why_not_sm90(HstuForwardArgs const& args);

/// Launches the forward kernel as a dependent of the kernel before it in the stream (launch_dependent()).
/// @param tiles_taken device counter from which blocks of threads take tiles (TileCounter), 0 when the kernel starts
void sm90_forward_async(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken);

/// The same for one dim. Each dim is a translation unit of its own.
template <int kDim>
void sm90_forward_of_dim(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken);

/// Reason why the sm_90a kernels do not take these arguments; empty if they do.
[[nodiscard]] std::string why_not_sm90(HstuBackwardArgs const& args);

/// Launches the backward kernels as dependents of the kernel before in the stream (launch_dependent()). Gradients of
/// bias weights must be 0 before.
/// @param workspace Sm90BackwardWorkspace::size_bytes bytes, of which the first cleared_bytes are 0
void sm90_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);

/// The same for one dim. Each dim is a translation unit of its own.
template <int kDim>
void sm90_backward_of_dim(HstuBackwardArgs const& args, CudaStream stream, void* workspace);

}  // namespace headway::kernels
