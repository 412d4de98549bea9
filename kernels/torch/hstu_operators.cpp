// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.hstu_attention and its backward pass. They are boxed: torch passes arguments on a stack, the last
// one on top. The gradient rule (gradients.cpp) keeps the inputs: S and P are computed again in the backward pass.
//
// Kernels for Hopper take only some shapes. If a copy with more columns makes them possible, it is made here, since
// the copy costs far less than the slower kernels: dim 48 is copied to 64 columns, the added ones are 0 and change no
// product. If nothing helps, a warning tells once why the call is slow.

#include "headway/kernels/hstu_attention_cuda.hpp"
#include "hstu_arguments.hpp"
#include "kernel_calls.hpp"
#include "torch_headers.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <utility>

namespace headway::kernels {

namespace {

using torch::jit::Stack;

/// Suffix of a warning, after its reason.
constexpr char const* kFastArguments =
    ". Fast are bfloat16 and float16 of up to 256 columns (gradients with a bias: 128), and gradients of bias weights "
    "that need not be deterministic";

/// Enqueues a kernel on torch's current stream of the device of `like`, with a workspace from torch's allocator.
template <class Args>
void enqueue(void (*kernel)(Args const&, CudaStream, void*), std::size_t (*workspace_bytes)(Args const&),
             Args const& args, at::Tensor const& like) {
  c10::DeviceGuard const guard(like.device());
  auto const size = static_cast<std::int64_t>(workspace_bytes(args));
  at::Tensor const workspace = at::empty({size}, like.options().dtype(at::kByte));
  kernel(args, current_stream(like.device()), workspace.data_ptr());
}

/// Runs a pass on the CPU or on the CUDA device of `like`.
void run(HstuForwardArgs const& args, at::Tensor const& like) {
  if (like.is_cpu()) return hstu_attention_forward(args, at::get_num_threads(), torch_executor());
  enqueue(&hstu_attention_forward_async, &hstu_attention_forward_workspace_bytes, args, like);
}

void run(HstuBackwardArgs const& args, at::Tensor const& like) {
  if (like.is_cpu()) return hstu_attention_backward(args, at::get_num_threads(), torch_executor());
  enqueue(&hstu_attention_backward_async, &hstu_attention_backward_workspace_bytes, args, like);
}

/// Kernels that would take the arguments on the device of `like`.
template <class Args>
HstuKernelChoice choose_kernels(Args const& args, at::Tensor const& like) {
  if (like.is_cpu()) return {};
  c10::DeviceGuard const guard(like.device());
  return choose_hstu_kernels(args);
}

/// Contiguous copy of rows with `columns` columns; added columns are 0.
/// A row of zeros adds nothing to any product, so wider queries, keys and values give the same output in their first
/// columns.
at::Tensor with_columns(at::Tensor const& rows, std::int64_t columns) {
  if (rows.size(2) != columns) return at::constant_pad_nd(rows, {0, columns - rows.size(2)});
  return rows.clone(at::MemoryFormat::Contiguous);
}

/// Arguments with such copies of queries, keys and values.
HstuArguments with_columns(HstuArguments arguments, std::int64_t columns) {
  for (at::Tensor* rows : {&arguments.q, &arguments.k, &arguments.v}) *rows = with_columns(*rows, columns);
  return arguments;
}

/// Copy of the first `columns` columns.
at::Tensor first_columns(at::Tensor const& rows, std::int64_t columns) {
  return rows.narrow(2, 0, columns).contiguous();
}

at::Tensor run_forward(HstuForwardArgs args, at::Tensor out) {
  args.out = heads_of<void*>(out);
  call_kernel([&] { run(args, out); });
  return out;
}

/// Forward pass. If a copy with more columns lets the faster kernels run, it makes one.
at::Tensor forward(HstuArguments const& arguments) {
  HstuForwardArgs args = view_of(arguments);
  at::Tensor out = empty_like_heads(arguments.q, arguments.v.size(2));
  args.out = heads_of<void*>(out);
  HstuKernelChoice const choice = choose_kernels(args, out);
  if (std::int64_t const columns = choice.columns_when_copied; columns > 0) {
    out.reset();  // Frees memory for the copies.
    HstuArguments const wider = with_columns(arguments, columns);
    return first_columns(run_forward(view_of(wider), empty_like_heads(wider.q, columns)), arguments.v.size(2));
  }
  if (!choice.why_slow.empty()) {
    TORCH_WARN_ONCE("hstu_attention: several times slower than it could be, as ", choice.why_slow, kFastArguments);
  }
  return run_forward(args, out);
}

/// Gradients of a backward pass. Missing bias weights have an empty tensor.
struct Gradients {
  at::Tensor q, k, v, position_weights, time_weights;
};

at::Tensor empty_like_weights(std::optional<at::Tensor> const& weights, at::Tensor const& q) {
  return weights ? at::empty_like(*weights) : at::empty({0}, q.options());
}

/// Gradients of keys and values are partial with query runs: other runs of the sequence add to them elsewhere.
KeyGradients key_gradients_of(HstuArguments const& args) {
  return args.query_runs ? KeyGradients::kOfSums : KeyGradients::kOfElements;
}

Gradients empty_gradients(HstuArguments const& args) {
  bool const is_wide = key_gradients_of(args) == KeyGradients::kOfSums && args.q.scalar_type() != at::kDouble;
  auto const key_options = is_wide ? args.k.options().dtype(at::kFloat) : args.k.options();
  return {.q = empty_like_heads(args.q, args.q.size(2)),
          .k = at::empty(args.k.sizes(), key_options),
          .v = at::empty(args.v.sizes(), key_options),
          .position_weights = empty_like_weights(args.position_weights, args.q),
          .time_weights = empty_like_weights(args.time_weights, args.q)};
}

/// View for a backward kernel. `arguments`, `grad` and `gradients` must outlive the result.
HstuBackwardArgs view_of(HstuArguments const& arguments, at::Tensor const& grad, Gradients const& gradients) {
  return {.forward = view_of(arguments),
          .grad_out = heads_of<void const*>(grad),
          .grad_query = heads_of<void*>(gradients.q),
          .grad_key = heads_of<void*>(gradients.k),
          .grad_value = heads_of<void*>(gradients.v),
          .grad_position_weights = arguments.position_weights ? gradients.position_weights.data_ptr() : nullptr,
          .grad_time_weights = arguments.time_weights ? gradients.time_weights.data_ptr() : nullptr,
          .key_gradients = key_gradients_of(arguments)};
}

/// Backward pass on copies with `columns` columns.
Gradients backward_with_columns(HstuArguments const& arguments, at::Tensor const& grad, std::int64_t columns) {
  HstuArguments const wider = with_columns(arguments, columns);
  at::Tensor const wide_grad = with_columns(grad, columns);
  Gradients gradients = empty_gradients(wider);
  HstuBackwardArgs const args = view_of(wider, wide_grad, gradients);
  call_kernel([&] { run(args, wide_grad); });
  gradients.q = first_columns(gradients.q, arguments.q.size(2));
  gradients.k = first_columns(gradients.k, arguments.k.size(2));
  gradients.v = first_columns(gradients.v, arguments.v.size(2));
  return gradients;
}

/// Backward pass; checks arguments and chooses kernels.
Gradients backward(at::Tensor const& grad_out, HstuArguments const& arguments) {
  static_cast<void>(view_of(arguments));  // Checks the arguments before anything is allocated.
  at::Tensor const &q = arguments.q, &v = arguments.v;
  TORCH_CHECK_VALUE(grad_out.sizes() == at::IntArrayRef({q.size(0), q.size(1), v.size(2)}) &&
                        grad_out.scalar_type() == q.scalar_type() && grad_out.device() == q.device(),
                    "hstu_attention_backward: grad_out must be as the output, and is ", grad_out.scalar_type(),
                    grad_out.sizes(), " on ", grad_out.device());
  at::Tensor const grad = grad_out.stride(2) == 1 ? grad_out : grad_out.contiguous();
  Gradients gradients = empty_gradients(arguments);
  HstuBackwardArgs const args = view_of(arguments, grad, gradients);
  HstuKernelChoice const choice = choose_kernels(args, q);
  if (choice.columns_when_copied > 0) {
    gradients = Gradients{};  // Frees memory for the copies.
    return backward_with_columns(arguments, grad, choice.columns_when_copied);
  }
  if (!choice.why_slow.empty()) {
    TORCH_WARN_ONCE("hstu_attention: gradients are several times slower than they could be, as ", choice.why_slow,
                    kFastArguments);
  }
  call_kernel([&] { run(args, q); });
  return gradients;
}

/// Boxed kernels: take arguments from the stack and push the results.
void forward_of_stack(c10::OperatorHandle const& /*op*/, Stack* stack) {
  at::Tensor const out = forward(HstuArguments(torch::jit::last(*stack, HstuArguments::kCount)));
  torch::jit::drop(*stack, HstuArguments::kCount);
  torch::jit::push(*stack, out);
}

void backward_of_stack(c10::OperatorHandle const& /*op*/, Stack* stack) {
  auto const arguments = torch::jit::last(*stack, HstuArguments::kCount + 1);
  Gradients const gradients = backward(arguments.front().toTensor(), HstuArguments(arguments.slice(1)));
  torch::jit::drop(*stack, HstuArguments::kCount + 1);
  torch::jit::push(*stack, gradients.q, gradients.k, gradients.v, gradients.position_weights, gradients.time_weights);
}

/// Autocast: queries, keys and values are cast to its type; bias weights stay float32.
/// The first three arguments of the schema are q, k and v. They are replaced on the stack, and the operator is called
/// again with autocasting excluded, which runs the kernel of the device.
void cast_heads_of_stack(c10::OperatorHandle const& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard const guard(
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}));
  for (std::size_t i = stack->size() - HstuArguments::kCount, end = i + 3; i < end; ++i) {
    at::Tensor const heads = (*stack)[i].toTensor();
    auto const device = heads.device().type();
    (*stack)[i] = at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), heads, device);
  }
  op.callBoxed(stack);
}

void register_kernels(torch::Library& library) {
  library.impl("hstu_attention", torch::CppFunction::makeFromBoxedFunction<&forward_of_stack>());
  library.impl("hstu_attention_backward", torch::CppFunction::makeFromBoxedFunction<&backward_of_stack>());
}

void register_cast(torch::Library& library) {
  library.impl("hstu_attention", torch::CppFunction::makeFromBoxedFunction<&cast_heads_of_stack>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  std::string const inputs = HstuArguments::kSchema;
  library.def(("hstu_attention(" + inputs + ") -> Tensor").c_str());
  library.def(
      ("hstu_attention_backward(Tensor grad_out, " + inputs + ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)").c_str());
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { register_kernels(library); }
TORCH_LIBRARY_IMPL(headway, CUDA, library) { register_kernels(library); }
TORCH_LIBRARY_IMPL(headway, AutocastCPU, library) { register_cast(library); }
TORCH_LIBRARY_IMPL(headway, AutocastCUDA, library) { register_cast(library); }

}  // namespace headway::kernels
