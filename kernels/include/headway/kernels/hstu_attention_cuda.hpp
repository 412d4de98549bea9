#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/hstu_attention.hpp"

#include <cstddef>

namespace headway::kernels {

/// hstu_attention_forward() on the current CUDA device, of which all pointers are. Enqueues and returns; allocates
/// nothing, and may be captured in a graph. Rows of all sequences are read in tiles, so that one with a value that is
/// not finite may spoil its neighbours.
///
/// On GPUs of compute capability 9.0: elements of 16 bits, `dim` = `value_dim` of 32, 64, 128 or 256, rows that begin
/// at multiples of 16 bytes, at most 1,023 bounds of times, fewer than 2^31 tokens. Times are told apart exactly where
/// those of a sequence lie within 2^47.
/// @param workspace hstu_attention_forward_workspace_bytes() of device memory, 16-byte aligned; whatever is in it
/// @throws std::invalid_argument if no kernel of this build is for such arguments or such a device, saying why;
///         std::runtime_error if CUDA refuses
void hstu_attention_forward_async(HstuForwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t hstu_attention_forward_workspace_bytes(HstuForwardArgs const& args);

/// hstu_attention_backward() likewise. With Determinism::kAny gradients of queries are added up in whatever order tiles
/// are done; with kDeterministic in a fixed one, and then no gradients of bias weights can be had.
/// On GPUs of compute capability 9.0 as above; dim 256 without bias.
/// @param workspace hstu_attention_backward_workspace_bytes() of device memory, 256-byte aligned; whatever is in it. It
///        has the sums for gradients of queries as float32, by tiles of 64 queries
void hstu_attention_backward_async(HstuBackwardArgs const& args, CudaStream stream, void* workspace);
[[nodiscard]] std::size_t hstu_attention_backward_workspace_bytes(HstuBackwardArgs const& args);

}  // namespace headway::kernels
