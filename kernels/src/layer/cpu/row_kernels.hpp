// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/gated_norm.hpp"

#include <cstdint>
#include <span>

namespace headway::kernels::layer {

/// Row of a norm, in buffers of padded(num_columns) numbers that are zero behind the last column.
template <class Real>
struct NormRow {
  NormKind norm;
  GateForm form;
  std::int64_t num_columns;
  Real eps;
  Real const *weight, *bias;  ///< May be null.
  Real *x, *gate;             ///< Gate before SiLU. The backward pass replaces both by their gradients.
  Real mean, inverse;         ///< `inverse` is 1 / deviation. Written by the forward pass, read by the backward pass.
  Real* parts[3];             ///< Parts of the output row, or of its gradient, as many as the form has.
  Real *weight_sums, *bias_sums;  ///< The backward pass adds the row's gradients of weight and bias here; may be null.
};

/// Functions on rows, compiled per instruction set. Sizes are multiples of 16 (padded()). A pointer instead of
/// a virtual function or a template per set: the caller picks one table per process, and each source file may be
/// compiled with flags that other processors would not survive.
template <class Real>
struct RowKernels {
  char const* instruction_set;
  /// x = silu(x)
  void (*activate)(std::int64_t size, Real* x);
  /// grad *= SiLU'(x)
  void (*activate_backward)(std::int64_t size, Real const* x, Real* grad);
  /// to += from
  void (*add)(std::int64_t size, Real const* from, Real* to);
  /// Forward pass of a row (GatedNorm).
  void (*norm)(NormRow<Real>& row);
  /// Backward pass of a row.
  void (*norm_backward)(NormRow<Real>& row);
};

/// Function tables, all compiled from the same source by files in simd/ with flags of their own. The latter two exist
/// on x86-64 only.
template <class Real>
[[nodiscard]] RowKernels<Real> baseline_row_kernels();
template <class Real>
[[nodiscard]] RowKernels<Real> avx2_row_kernels();
template <class Real>
[[nodiscard]] RowKernels<Real> avx512_row_kernels();

/// Instruction sets that this processor supports, the fastest last: the same as in hstu::usable_block_kernels().
template <class Real>
[[nodiscard]] std::span<RowKernels<Real> const> usable_row_kernels();

}  // namespace headway::kernels::layer
