// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/hstu_attention.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::kernels {

/// hstu_attention_forward() on the current CUDA device, which must own all pointers. It enqueues and returns, allocates
/// nothing, and may be captured in a CUDA graph.
///
/// The device checks offsets, counts and time bounds. A wrong one stops the context with an assertion before anything
/// is read or written through it; a line on stdout names the sequence and its values.
///
/// Supported on compute capability 8.0 and later: 16-bit elements or float32, `dim` and `value_dim` up to 256, any
/// strides, at most 1,023 time bounds. Time differences are exact if the times of a sequence lie within 2^47. Rows that
/// begin at multiples of 16 bytes are read 16 bytes at a time, others element by element.
///
/// Faster kernels exist for compute capability 9.0, 16-bit elements, `dim` = `value_dim` of 32, 64, 128 or 256, rows
/// that begin at multiples of 16 bytes, and fewer than 2^31 tokens.
/// @param workspace hstu_attention_forward_workspace_bytes() of device memory, 16-byte aligned, with any content
/// @throws std::invalid_argument if sizes do not fit each other, or if no kernel of this build supports the arguments
/// or the device; the text says why. std::runtime_error if CUDA refuses, or the build has no CUDA
void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& args);

/// Kernels that the current device would use for some arguments, if it has faster ones.
struct HstuKernelChoice {
  /// If not 0: the faster kernels would take the arguments after a copy. Rows of queries, keys, values and gradients
  /// must be copied to contiguous rows of this many columns, padded with 0.
  std::int32_t columns_when_copied = 0;
  std::string why_slow;  ///< If not empty: the sm_80 kernels take the arguments, for this reason.
};
[[nodiscard]] HstuKernelChoice choose_hstu_kernels(HstuForwardArgs const& args);

/// hstu_attention_backward() on the current CUDA device, like hstu_attention_forward_async(). The sm_80 kernels are
/// bitwise reproducible. The faster kernels add up gradients of queries and bias weights in the order in which tiles
/// finish. With Determinism::kDeterministic, and for many short sequences, gradients of queries have a fixed order. The
/// sm_80 kernels take calls for dim 256 with a bias, and calls that want deterministic gradients of bias weights.
/// @param workspace hstu_attention_backward_workspace_bytes() of device memory, 256-byte aligned, with any content. It
/// holds float32 sums for gradients of queries (for short sequences, those of the tokens that are in work at a time),
/// or partial gradients of bias weights of up to 512 blocks of threads
void hstu_attention_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& args);
[[nodiscard]] HstuKernelChoice choose_hstu_kernels(HstuBackwardArgs const& args);

}  // namespace headway::kernels
