#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/run_tasks.hpp"
#include "headway/kernels/strided_rows.hpp"

#include <cstdint>

namespace headway::kernels {

// Norms of rows with what a gate makes of them. Whatever the type of elements, numbers are computed in float32 (float64
// for float64) and rounded once. Sums over rows are taken in one order, which differs between the CPU and devices.

enum class NormKind : std::uint8_t {
  kLayer,  ///< norm(z) = (z - mean) / sqrt(variance + eps) * weight + bias
  kRms,    ///< norm(z) = z / sqrt(mean of squares + eps) * weight + bias
};

/// What becomes of a row x and its gate u, with s = silu(u) = u / (1 + exp(-u)).
enum class GateForm : std::uint8_t {
  kNone,          ///< norm(x); there is no gate.
  kNormThenGate,  ///< norm(x) s
  kGateThenNorm,  ///< norm(x s)
  kConcat,        ///< s, x and norm(x) s side by side
  kConcatNorm,    ///< s, norm(x) and norm(x) s side by side
};

/// Rows of the outcome are so many times as wide as those of x.
constexpr std::int64_t num_parts(GateForm form) {
  return form == GateForm::kConcat || form == GateForm::kConcatNorm ? 3 : 1;
}

struct GatedNorm {
  ElementType type = ElementType::kFloat32;
  NormKind norm = NormKind::kLayer;
  GateForm form = GateForm::kNone;
  double eps = 0;
  std::int64_t num_rows = 0, num_columns = 0;
  StridedRows<void const*> x{}, gate{};
  ElementType weight_type = ElementType::kFloat32;  ///< As `type`, or what numbers are computed in.
  void const *weight = nullptr, *bias = nullptr;    ///< (num_columns) each; null: 1 and 0.
};

/// @param out (num_rows, num_parts * num_columns)
/// @param statistics (num_rows, 2) in the type of computing, written: the mean (0 for kRms) and 1 / deviation
/// @throws std::invalid_argument if arguments do not fit each other
void gated_norm(GatedNorm const& args, void* out, void* statistics, RunTasks const& run_tasks);
void gated_norm_async(GatedNorm const& args, void* out, void* statistics, CudaStream stream);

struct GatedNormBackward {
  GatedNorm forward;
  void const* statistics = nullptr;                   ///< What the forward pass wrote.
  StridedRows<void const*> grad_out{};                ///< (num_rows, num_parts * num_columns)
  StridedRows<void const*> residual{};                ///< (num_rows, num_columns), added to grad_x; null: nothing is.
  void* grad_x = nullptr;                             ///< (num_rows, num_columns)
  void* grad_gate = nullptr;                          ///< (num_rows, num_columns); null without a gate.
  void *grad_weight = nullptr, *grad_bias = nullptr;  ///< (num_columns) of weight_type; null where there is none.
};

/// @throws std::invalid_argument if arguments do not fit each other
void gated_norm_backward(GatedNormBackward const& args, RunTasks const& run_tasks);
/// In two launches: all rows, and then the sums of blocks for gradients of weight and bias.
/// @param scratch of so many bytes as scratch_bytes() says on this device; needed until the stream is through
void gated_norm_backward_async(GatedNormBackward const& args, void* scratch, CudaStream stream);
[[nodiscard]] std::int64_t gated_norm_backward_scratch_bytes(GatedNormBackward const& args);

}  // namespace headway::kernels
