#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::kernels {

struct PortablePartials;

/// Reason why the sm_80 kernels do not take these arguments; empty if they do.
[[nodiscard]] std::string why_not_portable(HstuForwardArgs const& args);

/// Enqueues the forward pass on sm_80 and later.
void portable_forward_async(HstuForwardArgs const& args, CudaStream stream);
/// Enqueues the backward pass. Gradients are bitwise reproducible.
void portable_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t portable_backward_workspace_bytes(HstuBackwardArgs const& args);

/// The same for up to kDim columns. Each kDim is a translation unit of its own.
template <int kDim>
void portable_forward_of_dim(HstuForwardArgs const& args, CudaStream stream);
/// @returns number of blocks of threads that have left partial sums
template <int kDim>
std::int64_t portable_backward_of_dim(HstuBackwardArgs const& args, PortablePartials const& partials,
                                      CudaStream stream);

}  // namespace headway::kernels
