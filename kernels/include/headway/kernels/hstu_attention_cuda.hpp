#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/hstu_attention.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::kernels {

/// hstu_attention_forward() on the current CUDA device, of which all pointers are. Enqueues and returns; allocates
/// nothing, and may be captured in a graph.
///
/// Offsets, counts and bounds of times are checked on the device. One that is wrong stops the context with an assertion
/// before anything is read or written by it; a line on stdout names the sequence and its values.
///
/// On GPUs of compute capability 8.0 and later: elements of 16 bits or float32, `dim` and `value_dim` up to 256, any
/// strides, at most 1,023 bounds of times. Times are told apart exactly where those of a sequence lie within 2^47.
/// Rows that begin at multiples of 16 bytes are read 16 bytes at a time, others one by one.
///
/// Faster kernels are for compute capability 9.0, elements of 16 bits, `dim` = `value_dim` of 32, 64, 128 or 256, rows
/// that begin at multiples of 16 bytes, fewer than 2^31 tokens.
/// @param workspace hstu_attention_forward_workspace_bytes() of device memory, 16-byte aligned; whatever is in it
/// @throws std::invalid_argument if sizes do not fit each other, or no kernel of this build is for such arguments or
///         such a device, saying why;
///         std::runtime_error if CUDA refuses, or the build has no CUDA
void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& args);

/// Which kernels the current device has for arguments, where it has faster ones.
struct HstuKernelChoice {
  /// Not 0: the faster ones take the arguments if rows of queries, keys, values and gradients are copied to such as lie
  /// together, with so many columns, of which those behind are 0.
  std::int32_t columns_when_copied = 0;
  std::string why_slow;  ///< Not empty: the portable ones take the arguments, for this reason.
};
[[nodiscard]] HstuKernelChoice choose_hstu_kernels(HstuForwardArgs const& args);

/// hstu_attention_backward() likewise. The portable kernels give the same bits each time. The faster ones add up
/// gradients of queries and bias weights in whatever order tiles are done; with Determinism::kDeterministic, and for
/// many short sequences, gradients of queries in a fixed one. They leave gradients for dim 256 with a bias, and
/// deterministic ones of bias weights, to the portable ones.
/// @param workspace hstu_attention_backward_workspace_bytes() of device memory, 256-byte aligned; whatever is in it. It
///        has sums for gradients of queries as float32 (for short sequences those of the tokens that multiprocessors
///        work on at a time), or parts of those of bias weights by up to 512 blocks of
///        threads
void hstu_attention_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& args);
[[nodiscard]] HstuKernelChoice choose_hstu_kernels(HstuBackwardArgs const& args);

}  // namespace headway::kernels
