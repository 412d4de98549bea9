// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/executor.hpp"
#include "headway/kernels/strided_rows.hpp"

#include <cstdint>
#include <span>

namespace headway::kernels {

/// Consecutive columns of x in a tensor of their own.
template <class Pointer>
struct SplitPart {
  StridedRows<Pointer> rows{};
  std::int64_t num_columns = 0;
  bool is_activated = true;  ///< True: apply silu(x) = x / (1 + exp(-x)). False: copy.
};

/// Largest number of parts on a device.
inline constexpr std::size_t kMaxSplitParts = 8;

/// Splits the columns of rows into consecutive parts, and applies SiLU to some of them.
struct SiluSplit {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_rows = 0;
  StridedRows<void const*> x{};  ///< Width: sum of the widths of all parts.
  std::span<SplitPart<void*> const> parts{};
};

/// Splits on the CPU; the second form enqueues it on a CUDA stream.
/// @throws std::invalid_argument if arguments do not fit each other
void silu_split(SiluSplit const& args, Executor const& executor);
void silu_split_async(SiluSplit const& args, CudaStream stream);

/// Backward pass: joins the gradients of the parts to the gradient of x, and sums its columns. Sums use the values
/// before rounding, in float32 (float64 for float64), in one order.
struct SiluSplitBackward {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_rows = 0;
  StridedRows<void const*> x{};
  std::span<SplitPart<void const*> const> grad_parts{};
  void* grad_x = nullptr;       ///< (num_rows, columns of all parts)
  void* column_sums = nullptr;  ///< (columns of all parts): sums of grad_x, the gradient of a bias.
};

/// @throws std::invalid_argument if arguments do not fit each other
void silu_split_backward(SiluSplitBackward const& args, Executor const& executor);
/// @param scratch silu_split_backward_scratch_bytes() bytes, for the same device; in use until the stream has passed
/// the call
void silu_split_backward_async(SiluSplitBackward const& args, void* scratch, CudaStream stream);
[[nodiscard]] std::int64_t silu_split_backward_scratch_bytes(SiluSplitBackward const& args);

}  // namespace headway::kernels
