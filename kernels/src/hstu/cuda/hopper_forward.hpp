#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstdint>
#include <string>

namespace headway::kernels {

/// Reason why the sm_90a kernels do not take these arguments; empty if they do.
[[nodiscard]] std::string why_not_for_hopper(HstuForwardArgs const& args);

/// Launches the forward kernel as a dependent of the kernel before it in the stream (launch_dependent()).
/// @param tiles_taken device counter for TileCounter, 0 when the kernel starts
void hopper_forward_async(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken);

/// The same for one dim. Each dim is a translation unit of its own.
template <int kDim>
void hopper_forward_of_dim(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken);

}  // namespace headway::kernels
