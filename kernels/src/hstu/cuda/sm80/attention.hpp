// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::kernels {

struct Sm80Partials;  // Partial gradients of bias weights in the workspace (plan.hpp).

/// Reason why the sm_80 kernels do not take these arguments; empty if they do.
[[nodiscard]] std::string why_not_sm80(HstuForwardArgs const& args);

/// Enqueues the forward pass on sm_80 and later.
void sm80_forward_async(HstuForwardArgs const& args, CudaStream stream);
/// Enqueues the backward pass. Gradients are bitwise reproducible.
/// @param workspace sm80_backward_workspace_bytes() bytes of device memory, with any content
void sm80_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t sm80_backward_workspace_bytes(HstuBackwardArgs const& args);

/// The same for up to kDim columns. Each kDim is a translation unit of its own.
template <int kDim>
void sm80_forward_of_dim(HstuForwardArgs const& args, CudaStream stream);
/// @returns number of blocks of threads that have left partial sums
template <int kDim>
std::int64_t sm80_backward_of_dim(HstuBackwardArgs const& args, Sm80Partials const& partials, CudaStream stream);

}  // namespace headway::kernels
