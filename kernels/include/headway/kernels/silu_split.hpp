#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/run_tasks.hpp"
#include "headway/kernels/strided_rows.hpp"

#include <cstdint>
#include <span>

namespace headway::kernels {

/// Columns of rows that lie elsewhere.
template <class Pointer>
struct SplitPart {
  StridedRows<Pointer> rows{};
  std::int64_t num_columns = 0;
  bool is_activated = true;  ///< They go through silu(x) = x / (1 + exp(-x)); else they are as they were.
};

/// A device takes no more parts.
inline constexpr std::size_t kMostSplitParts = 8;

/// Cuts the columns of rows into parts, one after the other.
struct SiluSplit {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_rows = 0;
  StridedRows<void const*> x{};  ///< As wide as all parts together.
  std::span<SplitPart<void*> const> parts{};
};

/// @throws std::invalid_argument if arguments do not fit each other
void silu_split(SiluSplit const& args, RunTasks const& run_tasks);
void silu_split_async(SiluSplit const& args, CudaStream stream);

/// Joins gradients of the parts to that of x. Sums of columns are those of what is written, before it is rounded, in
/// float32 (float64 for float64), and taken in one order.
struct SiluSplitBackward {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_rows = 0;
  StridedRows<void const*> x{};
  std::span<SplitPart<void const*> const> grad_parts{};
  void* grad_x = nullptr;       ///< (num_rows, columns of all parts)
  void* column_sums = nullptr;  ///< (columns of all parts)
};

/// @throws std::invalid_argument if arguments do not fit each other
void silu_split_backward(SiluSplitBackward const& args, RunTasks const& run_tasks);
/// @param scratch of so many bytes as scratch_bytes() says on this device; needed until the stream is through
void silu_split_backward_async(SiluSplitBackward const& args, void* scratch, CudaStream stream);
[[nodiscard]] std::int64_t silu_split_backward_scratch_bytes(SiluSplitBackward const& args);

}  // namespace headway::kernels
