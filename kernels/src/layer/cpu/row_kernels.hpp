#pragma once

#include "headway/kernels/gated_norm.hpp"

#include <cstdint>
#include <span>

namespace headway::kernels::layer {

/// A row of numbers for a norm, in buffers of padded(num_columns) that are zero behind the last column.
template <class Real>
struct NormRow {
  NormKind norm;
  GateForm form;
  std::int64_t num_columns;
  Real eps;
  Real const *weight, *bias;      ///< May be null.
  Real *x, *gate;                 ///< Before SiLU. The backward pass leaves their gradients here.
  Real mean, inverse;             ///< Written by the forward pass, read by the backward pass.
  Real* parts[3];                 ///< Of the outcome, or of its gradient; those that the form has.
  Real *weight_sums, *bias_sums;  ///< The backward pass adds the row's gradients; may be null.
};

/// What is done with rows, compiled for an instruction set. Sizes are padded.
template <class Real>
struct RowKernels {
  char const* instruction_set;
  /// x = silu(x)
  void (*activate)(std::int64_t size, Real* x);
  /// grad *= the slope of silu at x
  void (*activate_backward)(std::int64_t size, Real const* x, Real* grad);
  void (*add)(std::int64_t size, Real const* from, Real* to);
  void (*norm)(NormRow<Real>& row);
  void (*norm_backward)(NormRow<Real>& row);
};

/// Compiled from the same source, each by its file in simd/ with flags of its own; the latter two on x86-64 alone.
template <class Real>
[[nodiscard]] RowKernels<Real> baseline_row_kernels();
template <class Real>
[[nodiscard]] RowKernels<Real> avx2_row_kernels();
template <class Real>
[[nodiscard]] RowKernels<Real> avx512_row_kernels();

/// Those that this processor can run, the fastest last: of the same instruction sets as hstu::usable_block_kernels().
template <class Real>
[[nodiscard]] std::span<RowKernels<Real> const> usable_row_kernels();

}  // namespace headway::kernels::layer
