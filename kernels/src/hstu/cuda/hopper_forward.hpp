#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstdint>
#include <string>

namespace headway::kernels {

/// Why kernels for sm_90a are not for these arguments; empty if they are.
[[nodiscard]] std::string why_not_for_hopper(HstuForwardArgs const& args);

/// Depends on the kernel before in the stream (launch_dependent()).
/// @param tiles_taken a counter that is 0
void hopper_forward_async(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken);

/// The same for one dim; each compiled by itself.
template <int kDim>
void hopper_forward_of_dim(HstuForwardArgs const& args, CudaStream stream, std::int32_t* tiles_taken);

}  // namespace headway::kernels
