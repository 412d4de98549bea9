// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/executor.hpp"
#include "headway/kernels/strided_rows.hpp"

#include <cstdint>

namespace headway::kernels {

// Fused normalisation and gating of rows. Whatever the element type, arithmetic is in float32 (float64 for float64),
// and results are rounded once. Sums over rows have one order, which differs between the CPU and devices.

/// Normalisation of a row z.
enum class NormKind : std::uint8_t {
  kLayer,  ///< norm(z) = (z - mean) / sqrt(variance + eps) * weight + bias
  kRms,    ///< norm(z) = z / sqrt(mean of squares + eps) * weight + bias
};

/// Combination of a row x and its gate u, with s = silu(u) = u / (1 + exp(-u)).
enum class GateForm : std::uint8_t {
  kNone,          ///< norm(x); there is no gate.
  kNormThenGate,  ///< norm(x) s
  kGateThenNorm,  ///< norm(x s)
  kConcat,        ///< s, x and norm(x) s side by side
  kConcatNorm,    ///< s, norm(x) and norm(x) s side by side
};

/// Width of an output row, in multiples of the width of x.
constexpr std::int64_t num_parts(GateForm form) {
  return form == GateForm::kConcat || form == GateForm::kConcatNorm ? 3 : 1;
}

/// Arguments of the forward pass. Pointers are to memory of the device that computes; the caller owns it.
struct GatedNorm {
  ElementType type = ElementType::kFloat32;
  NormKind norm = NormKind::kLayer;
  GateForm form = GateForm::kNone;
  double eps = 0;
  std::int64_t num_rows = 0, num_columns = 0;
  StridedRows<void const*> x{}, gate{};
  ElementType weight_type = ElementType::kFloat32;  ///< Either `type` or the type of the arithmetic.
  void const *weight = nullptr, *bias = nullptr;    ///< (num_columns) each; null: 1 and 0.
};

/// Forward pass on the CPU; the second form enqueues it on a CUDA stream.
/// @param out (num_rows, num_parts * num_columns)
/// @param statistics (num_rows, 2), written, in the type of the arithmetic: mean (0 for kRms) and the
///   factor 1 / sqrt(... + eps) of NormKind
/// @throws std::invalid_argument if arguments do not fit each other
void gated_norm(GatedNorm const& args, void* out, void* statistics, Executor const& executor);
void gated_norm_async(GatedNorm const& args, void* out, void* statistics, CudaStream stream);

/// Arguments of the backward pass. All gradients are overwritten.
struct GatedNormBackward {
  GatedNorm forward;
  void const* statistics = nullptr;     ///< (num_rows, 2), written by the forward pass.
  StridedRows<void const*> grad_out{};  ///< (num_rows, num_parts * num_columns)
  StridedRows<void const*> residual{};  ///< (num_rows, num_columns), added to grad_x; null if there is none.
  void* grad_x = nullptr;               ///< (num_rows, num_columns)
  void* grad_gate = nullptr;            ///< (num_rows, num_columns); null without a gate.
  void *grad_weight = nullptr, *grad_bias = nullptr;  ///< (num_columns) of weight_type; null where there is none.
};

/// Backward pass on the CPU.
/// @throws std::invalid_argument if arguments do not fit each other
void gated_norm_backward(GatedNormBackward const& args, Executor const& executor);
/// Backward pass on a device, in two launches: all rows, then the sums over blocks for gradients of weight and bias.
/// @param scratch gated_norm_backward_scratch_bytes() bytes, for the same device; in use until the stream has passed
/// the call
void gated_norm_backward_async(GatedNormBackward const& args, void* scratch, CudaStream stream);
[[nodiscard]] std::int64_t gated_norm_backward_scratch_bytes(GatedNormBackward const& args);

}  // namespace headway::kernels
