#pragma once

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::kernels {

struct PortablePartials;

/// Why kernels for sm_80 and later are not for these arguments; empty if they are.
[[nodiscard]] std::string why_not_portable(HstuForwardArgs const& args);

void portable_forward_async(HstuForwardArgs const& args, CudaStream stream);
/// Gradients are the same bits each time.
void portable_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t portable_backward_workspace_bytes(HstuBackwardArgs const& args);

/// The same for up to kDim columns; each compiled by itself.
template <int kDim>
void portable_forward_of_dim(HstuForwardArgs const& args, CudaStream stream);
/// @returns how many blocks of threads have left partial sums
template <int kDim>
std::int64_t portable_backward_of_dim(HstuBackwardArgs const& args, PortablePartials const& partials,
                                      CudaStream stream);

}  // namespace headway::kernels
