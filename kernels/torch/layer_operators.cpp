// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.gated_norm and silu_split with their backward passes. python/headway/ops documents the arguments.
//
// Inputs may be views with any stride between rows, such as parts of one projection; only columns must be contiguous.
// Missing gradients are returned as empty tensors, since an operator's schema cannot leave out a result.

#include "headway/kernels/gated_norm.hpp"
#include "headway/kernels/silu_split.hpp"
#include "kernel_calls.hpp"
#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <c10/core/DeviceGuard.h>

#include <array>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::kernels {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// Type of the arithmetic for elements of a tensor.
at::ScalarType real_of(at::Tensor const& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Tensor (rows, columns) with contiguous columns; copied if necessary.
at::Tensor in_rows(at::Tensor const& tensor) {
  return tensor.stride(1) == 1 || tensor.size(1) <= 1 ? tensor : tensor.contiguous();
}

StridedRows<void const*> rows_of(at::Tensor const& tensor) {
  return {.data = tensor.const_data_ptr(), .stride = tensor.stride(0)};
}

/// Checks shape, type and device of a tensor of rows against x.
void check_rows(char const* op, char const* name, at::Tensor const& tensor, at::Tensor const& x,
                std::int64_t num_columns) {
  TORCH_CHECK_VALUE(tensor.dim() == 2 && tensor.size(0) == x.size(0) && tensor.size(1) == num_columns, op, ": ", name,
                    " must be (", x.size(0), ", ", num_columns, "), not ", tensor.sizes());
  TORCH_CHECK_VALUE(tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device(), op, ": ", name, " is ",
                    tensor.scalar_type(), " on ", tensor.device(), ", and x ", x.scalar_type(), " on ", x.device());
}

NormKind norm_of(c10::string_view name) {
  if (name == "layer") return NormKind::kLayer;
  TORCH_CHECK_VALUE(name == "rms", "gated_norm: norm must be layer or rms, not ", name);
  return NormKind::kRms;
}

GateForm form_of(c10::string_view name) {
  if (name == "norm_then_gate") return GateForm::kNormThenGate;
  if (name == "gate_then_norm") return GateForm::kGateThenNorm;
  if (name == "concat") return GateForm::kConcat;
  TORCH_CHECK_VALUE(name == "concat_norm",
                    "gated_norm: form must be norm_then_gate, gate_then_norm, concat or concat_norm, not ", name);
  return GateForm::kConcatNorm;
}

/// Arguments of both passes of gated_norm, checked. Keeps contiguous copies alive where copies were necessary.
struct NormArguments {
  at::Tensor x;
  OptionalTensor gate, weight, bias;
  GatedNorm args;

  NormArguments(at::Tensor const& rows, OptionalTensor const& gate_rows, OptionalTensor const& factor,
                OptionalTensor const& summand, c10::string_view norm, c10::string_view form, double eps)
      : weight(factor), bias(summand) {
    TORCH_CHECK_VALUE(rows.dim() == 2, "gated_norm: x must be (rows, columns), not ", rows.sizes());
    args.type = element_type(rows, "gated_norm", "x");
    x = in_rows(rows);
    if (gate_rows) {
      check_rows("gated_norm", "gate", *gate_rows, rows, rows.size(1));
      gate = in_rows(*gate_rows);
      args.gate = kernels::rows_of(*gate);
    }
    for (auto const& [name, each] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}}) {
      if (!*each) continue;
      *each = (*each)->contiguous();
      check_columns(name, **each);
      args.weight_type = element_type(**each, "gated_norm", name);
    }
    TORCH_CHECK_VALUE(!weight || !bias || weight->scalar_type() == bias->scalar_type(),
                      "gated_norm: weight and bias must be of one type");
    if (!weight && !bias) args.weight_type = args.type;
    args.norm = norm_of(norm);
    GateForm const with_gate = form_of(form);
    args.form = gate ? with_gate : GateForm::kNone;
    TORCH_CHECK_VALUE(eps >= 0, "gated_norm: eps must be from 0, and is ", eps);
    args.eps = eps;
    args.num_rows = x.size(0);
    args.num_columns = x.size(1);
    args.x = kernels::rows_of(x);
    args.weight = weight ? weight->const_data_ptr() : nullptr;
    args.bias = bias ? bias->const_data_ptr() : nullptr;
  }

  [[nodiscard]] std::int64_t num_out_columns() const { return num_parts(args.form) * args.num_columns; }

 private:
  void check_columns(char const* name, at::Tensor const& values) const {
    TORCH_CHECK_VALUE(values.dim() == 1 && values.size(0) == x.size(1) && values.device() == x.device(),
                      "gated_norm: ", name, " must be (", x.size(1), ") on ", x.device(), ", not ", values.sizes(),
                      " on ", values.device());
  }
};

/// @returns output (rows, columns of the form), and per row the mean and the reciprocal of the deviation, for the
/// backward pass
std::tuple<at::Tensor, at::Tensor> gated_norm_forward(at::Tensor const& x, OptionalTensor const& gate,
                                                      OptionalTensor const& weight, OptionalTensor const& bias,
                                                      c10::string_view norm, c10::string_view form, double eps) {
  NormArguments const given(x, gate, weight, bias, norm, form, eps);
  at::Tensor const out = at::empty({x.size(0), given.num_out_columns()}, x.options());
  at::Tensor const statistics = at::empty({x.size(0), 2}, x.options().dtype(real_of(x)));
  call_kernel([&] {
    if (x.is_cpu()) return gated_norm(given.args, out.data_ptr(), statistics.data_ptr(), torch_executor());
    c10::DeviceGuard const guard(x.device());
    gated_norm_async(given.args, out.data_ptr(), statistics.data_ptr(), current_stream(x.device()));
  });
  return {out, statistics};
}

/// Uninitialised tensor like `tensor`; empty if there is none.
at::Tensor empty_like_optional(OptionalTensor const& tensor, at::Tensor const& x) {
  return tensor ? at::empty_like(*tensor, at::MemoryFormat::Contiguous) : at::empty({0}, x.options());
}

/// `residual` is a gradient of x from elsewhere, such as that of a skip connection. It is added here, which saves a
/// pass over memory.
/// @returns gradients of x, gate, weight and bias
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> gated_norm_gradients(
    at::Tensor const& grad_out, at::Tensor const& statistics, OptionalTensor const& residual, at::Tensor const& x,
    OptionalTensor const& gate, OptionalTensor const& weight, OptionalTensor const& bias, c10::string_view norm,
    c10::string_view form, double eps) {
  NormArguments const given(x, gate, weight, bias, norm, form, eps);
  check_rows("gated_norm_backward", "grad_out", grad_out, x, given.num_out_columns());
  TORCH_CHECK_VALUE(statistics.sizes() == at::IntArrayRef({x.size(0), 2}) && statistics.is_contiguous() &&
                        statistics.scalar_type() == real_of(x) && statistics.device() == x.device(),
                    "gated_norm_backward: statistics must be those of the forward pass");
  at::Tensor const grad_rows = in_rows(grad_out);
  OptionalTensor residual_rows;
  if (residual) {
    check_rows("gated_norm_backward", "residual", *residual, x, x.size(1));
    residual_rows = in_rows(*residual);
  }
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  at::Tensor grad_gate = gate ? at::empty(gate->sizes(), gate->options()) : at::empty({0}, x.options());
  at::Tensor grad_weight = empty_like_optional(weight, x), grad_bias = empty_like_optional(bias, x);
  GatedNormBackward const args{.forward = given.args,
                               .statistics = statistics.const_data_ptr(),
                               .grad_out = rows_of(grad_rows),
                               .residual = residual_rows ? rows_of(*residual_rows) : StridedRows<void const*>{},
                               .grad_x = grad_x.data_ptr(),
                               .grad_gate = gate ? grad_gate.data_ptr() : nullptr,
                               .grad_weight = weight ? grad_weight.data_ptr() : nullptr,
                               .grad_bias = bias ? grad_bias.data_ptr() : nullptr};
  call_kernel([&] {
    if (x.is_cpu()) return gated_norm_backward(args, torch_executor());
    c10::DeviceGuard const guard(x.device());
    at::Tensor const scratch = at::empty({gated_norm_backward_scratch_bytes(args)}, x.options().dtype(at::kByte));
    gated_norm_backward_async(args, scratch.data_ptr(), current_stream(x.device()));
  });
  return {grad_x, grad_gate, grad_weight, grad_bias};
}

/// Checks that the widths of the parts add up to the columns of x.
void check_parts(at::Tensor const& x, at::IntArrayRef widths, c10::List<bool> const& activated) {
  TORCH_CHECK_VALUE(x.dim() == 2, "silu_split: x must be (rows, columns), not ", x.sizes());
  TORCH_CHECK_VALUE(widths.size() == activated.size(), "silu_split: there are ", widths.size(),
                    " parts, and activated has ", activated.size(), " entries");
  std::int64_t num_columns = 0;
  for (std::int64_t const width : widths) {
    TORCH_CHECK_VALUE(width >= 0 && width <= x.size(1), "silu_split: widths must be from 0 to ", x.size(1),
                      ", and one is ", width);
    num_columns += width;
  }
  TORCH_CHECK_VALUE(num_columns == x.size(1), "silu_split: parts have ", num_columns, " columns, and x has ",
                    x.size(1));
}

/// Cuts x into parts of `widths` columns and applies SiLU, x * sigmoid(x), to those that are activated. An HSTU layer
/// makes u, v, q and k from one projection that way.
std::vector<at::Tensor> silu_split_forward(at::Tensor const& x, at::IntArrayRef widths,
                                           c10::List<bool> const& activated) {
  check_parts(x, widths, activated);
  at::Tensor const rows = in_rows(x);
  std::vector<at::Tensor> outs;
  std::vector<SplitPart<void*>> parts;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    outs.push_back(at::empty({x.size(0), widths[i]}, x.options()));
    parts.push_back({.rows = {.data = outs.back().data_ptr(), .stride = widths[i]},
                     .num_columns = widths[i],
                     .is_activated = activated[i]});
  }
  SiluSplit const args{
      .type = element_type(x, "silu_split", "x"), .num_rows = x.size(0), .x = rows_of(rows), .parts = parts};
  call_kernel([&] {
    if (x.is_cpu()) return silu_split(args, torch_executor());
    c10::DeviceGuard const guard(x.device());
    silu_split_async(args, current_stream(x.device()));
  });
  return outs;
}

/// @returns gradient of x, and its sum over all rows: the gradient of the projection's bias
std::tuple<at::Tensor, at::Tensor> silu_split_gradients(at::TensorList grads, at::Tensor const& x,
                                                        c10::List<bool> const& activated) {
  std::vector<std::int64_t> widths;
  for (auto const& grad : grads) widths.push_back(grad.dim() == 2 ? grad.size(1) : 0);
  check_parts(x, widths, activated);
  at::Tensor const rows = in_rows(x);
  std::vector<at::Tensor> grad_rows;
  std::vector<SplitPart<void const*>> parts;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    check_rows("silu_split_backward", "a gradient", grads[i], x, grads[i].size(1));
    grad_rows.push_back(in_rows(grads[i]));
    parts.push_back(
        {.rows = rows_of(grad_rows.back()), .num_columns = grad_rows.back().size(1), .is_activated = activated[i]});
  }
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  at::Tensor column_sums = at::empty({x.size(1)}, x.options().dtype(real_of(x)));
  SiluSplitBackward const args{.type = element_type(x, "silu_split_backward", "x"),
                               .num_rows = x.size(0),
                               .x = rows_of(rows),
                               .grad_parts = parts,
                               .grad_x = grad_x.data_ptr(),
                               .column_sums = column_sums.data_ptr()};
  call_kernel([&] {
    if (x.is_cpu()) return silu_split_backward(args, torch_executor());
    c10::DeviceGuard const guard(x.device());
    at::Tensor const scratch = at::empty({silu_split_backward_scratch_bytes(args)}, x.options().dtype(at::kByte));
    silu_split_backward_async(args, scratch.data_ptr(), current_stream(x.device()));
  });
  return {grad_x, column_sums};
}

void implement(torch::Library& library) {
  library.impl("gated_norm", &gated_norm_forward);
  library.impl("gated_norm_backward", &gated_norm_gradients);
  library.impl("silu_split", &silu_split_forward);
  library.impl("silu_split_backward", &silu_split_gradients);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  std::string const norm = "Tensor x, Tensor? gate, Tensor? weight, Tensor? bias, str norm, str form, float eps";
  library.def(("gated_norm(" + norm + ") -> (Tensor, Tensor)").c_str());
  library.def(("gated_norm_backward(Tensor grad_out, Tensor statistics, Tensor? residual, " + norm +
               ") -> (Tensor, Tensor, Tensor, Tensor)")
                  .c_str());
  library.def("silu_split(Tensor x, SymInt[] widths, bool[] activated) -> Tensor[]");
  library.def("silu_split_backward(Tensor[] grads, Tensor x, bool[] activated) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(headway, CUDA, library) { implement(library); }

}  // namespace headway::kernels
