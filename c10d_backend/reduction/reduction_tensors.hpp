// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reduction/delegated_work.hpp"
#include "reduction/gloo_reduction.hpp"
#include "torch_headers.hpp"

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace headway::c10d_backend {

/// Tensors of one reduction in the form that the delegate takes. Gloo reads and writes plain memory: it ignores strides
/// and the bits of lazily conjugated or negated tensors. So a temporary replaces each tensor that is not plain or has a
/// type without code in Gloo. NCCL checks shapes and types itself and gets the tensors unchanged.
class ReductionTensors final {
 public:
  /// Checks everything that needs no communication. `tensors`: all inputs and outputs.
  /// @throws ValueError naming type and operation if the delegate cannot reduce them; NotImplementedError if a tensor
  /// is neither on a CPU nor on a CUDA device.
  ReductionTensors(std::string_view op_name, c10d::ReduceOp operation, std::vector<at::Tensor> const& tensors);

  /// Memory in which `tensor` is reduced: itself, or a temporary whose result is copied to it at the end.
  at::Tensor in_place(at::Tensor const& tensor);
  /// One-dimensional copy of the elements of `tensors`, in order. Only copy_back() copies its result anywhere.
  at::Tensor scratch(at::ArrayRef<at::Tensor> tensors);
  /// Copies `part` of a scratch tensor to `output` at the end.
  void copy_back(at::Tensor const& part, at::Tensor const& output);

  /// Operation to request from the delegate.
  [[nodiscard]] c10d::ReduceOp const& operation() const { return operation_; }
  /// Copies to run after the reduction; none if there are no temporaries. `results`: tensors for the caller.
  [[nodiscard]] std::optional<Epilogue> epilogue(std::vector<at::Tensor> results) const;

 private:
  struct CopyBack {
    at::Tensor part;
    at::Tensor output;
    bool flips_sign;  ///< Flip the top bit, as unsigned numbers were reduced as signed ones of the same order.
  };

  [[nodiscard]] bool is_plain(at::Tensor const& tensor) const;

  c10d::ReduceOp operation_;
  std::optional<GlooReduction> gloo_;  ///< None if the delegate takes the tensors unchanged.
  bool has_temporaries_ = false;
  std::vector<CopyBack> copies_;
};

}  // namespace headway::c10d_backend
