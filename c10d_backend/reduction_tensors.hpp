#pragma once

#include "delegated_work.hpp"
#include "gloo_form.hpp"
#include "torch_headers.hpp"

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace headway::c10d_backend {

/// The tensors of one reduction as its delegate gets them. Gloo reads and writes plain memory: it sees neither strides
/// nor the bits of lazily conjugated or negated tensors. Stand-ins take the place of tensors that are more than that,
/// or of a type that Gloo has no code for. NCCL checks shapes and types itself, and gets the tensors as they are.
class ReductionTensors final {
 public:
  /// Checks all that needs no communication. `tensors`: all inputs and outputs. @throws ValueError that names type and
  /// operation if the delegate cannot reduce them; NotImplementedError for tensors elsewhere than on a CPU or a CUDA
  /// device.
  ReductionTensors(std::string_view verb, c10d::ReduceOp operation, std::vector<at::Tensor> const& tensors);

  /// Memory in which `tensor` is reduced: itself or a stand-in, whose result reaches it at the end.
  at::Tensor in_place(at::Tensor const& tensor);
  /// One-dimensional memory with the elements of `tensors` in order, whose result goes nowhere.
  at::Tensor scratch(at::ArrayRef<at::Tensor> tensors);
  /// Copies `part` of a scratch tensor to `output` at the end.
  void deliver(at::Tensor const& part, at::Tensor const& output);

  /// Operation to ask the delegate for.
  [[nodiscard]] c10d::ReduceOp const& operation() const { return operation_; }
  /// None: the delegate's result is all there is. `results`: the tensors that callers get.
  [[nodiscard]] std::optional<FinishingTouch> touch(std::vector<at::Tensor> results) const;

 private:
  struct Delivery {
    at::Tensor part;
    at::Tensor output;
    bool flips_sign;
  };

  [[nodiscard]] bool is_plain(at::Tensor const& tensor) const;

  c10d::ReduceOp operation_;
  std::optional<GlooForm> form_;  ///< None: the delegate takes the tensors as they are.
  bool has_stand_ins_ = false;
  std::vector<Delivery> deliveries_;
};

}  // namespace headway::c10d_backend
