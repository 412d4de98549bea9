// SPDX-License-Identifier: Apache-2.0

// Gradients of operators, registered with torch's dispatcher.
//
// Idea: the backward pass of an operator calls another operator of this library. A *gradient rule* says what a call
// must keep for it, and which operator that is. register_gradient() makes a kernel for the dispatch key Autograd of it.
// The kernel is boxed: it sees the arguments on torch's stack, so one template serves operators of any schema.
//
// Example: jagged_expand repeats the rows of samples. Its rule keeps the offsets, and its backward pass calls
// jagged_reduce, which adds the rows up again.
//
//   struct ExpandRule : FirstResult {
//     static void save(Context& context, c10::OperatorHandle const& op, Values arguments, Values results);
//     static variable_list backward(Context& context, variable_list grads);
//   };
//
// Invariants: the inputs of the graph's node are all tensors among the arguments, in order, without those that are
// None. backward() returns a gradient for each of them. Those at the end may be left out, and an undefined tensor says
// that there is none. Only the first result of an operator, a tensor or a list of tensors, has a gradient.
//
// Complexity: a call that needs no gradient costs a look at each tensor. One that needs some adds a node, about 5 us.

#pragma once

#include "torch_headers.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace headway::kernels {

using torch::autograd::variable_list;
using torch::jit::Stack;
using Context = torch::autograd::AutogradContext;
using Values = c10::ArrayRef<c10::IValue>;

/// Tensors among `values` and in lists of them, without those that are None.
inline variable_list tensors_of(Values values) {
  variable_list tensors;
  for (auto const& value : values) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (at::Tensor const& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

/// The graph's node of a call. Results that may have gradients are the first `Rule::kNumDifferentiable` ones.
template <class Rule>
class RuleFunction final : public torch::autograd::Function<RuleFunction<Rule>> {
 public:
  static constexpr bool is_traceable = true;  ///< Compiled autograd may trace the backward pass.

  /// Runs the operator below autograd, on the arguments on the stack.
  /// @param inputs tensors among the arguments; torch's template connects the node with them
  /// @returns the tensors of the results that may have gradients
  static variable_list forward(Context* context, at::TensorList inputs, c10::OperatorHandle const& op, Stack* stack) {
    at::AutoDispatchBelowADInplaceOrView const below;
    auto const arguments = torch::jit::last(*stack, op.schema().arguments().size()).vec();
    op.callBoxed(stack);
    Values const results = torch::jit::last(*stack, op.schema().returns().size());
    context->saved_data["num_inputs"] = static_cast<std::int64_t>(inputs.size());
    Rule::save(*context, op, arguments, results);
    return tensors_of(results.slice(0, num_differentiable(op)));
  }

  static variable_list backward(Context* context, variable_list grads) {
    auto gradients = Rule::backward(*context, std::move(grads));
    // The operator and the stack are arguments of forward() too, and have no gradient.
    gradients.resize(static_cast<std::size_t>(context->saved_data.at("num_inputs").toInt()) + 2);
    return gradients;
  }

  static std::size_t num_differentiable(c10::OperatorHandle const& op) {
    return std::min(Rule::kNumDifferentiable, op.schema().returns().size());
  }
};

/// Base of rules of operators whose first result, and no other one, has a gradient.
struct FirstResult {
  static constexpr std::size_t kNumDifferentiable = 1;
};

/// Kernel for the dispatch key Autograd.
template <class Rule>
void call_with_gradient(c10::OperatorHandle const& op, Stack* stack) {
  auto const inputs = tensors_of(torch::jit::last(*stack, op.schema().arguments().size()));
  if (!at::GradMode::is_enabled() ||
      !std::ranges::any_of(inputs, [](auto const& each) { return each.requires_grad(); })) {
    at::AutoDispatchBelowADInplaceOrView const below;
    return op.callBoxed(stack);
  }
  auto const outputs = RuleFunction<Rule>::apply(at::TensorList(inputs), op, stack);
  // The tensors that apply() returns belong to the graph; those on the stack do not.
  auto next = outputs.begin();
  std::size_t const begin = stack->size() - op.schema().returns().size();
  for (std::size_t i = begin; i < begin + RuleFunction<Rule>::num_differentiable(op); ++i) {
    auto& result = (*stack)[i];
    auto const count = static_cast<std::ptrdiff_t>(result.isTensor() ? 1 : result.toTensorList().size());
    result = result.isTensor() ? c10::IValue(*next) : c10::IValue(variable_list(next, next + count));
    next += count;
  }
}

/// Registers `Rule` for operator `name`. `library` is that of the dispatch key Autograd.
template <class Rule>
void register_gradient(torch::Library& library, char const* name) {
  library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_with_gradient<Rule>>());
}

/// Rule of a backward operator: its gradient, a second derivative, is an error and not zero.
struct NoGradient {
  static constexpr std::size_t kNumDifferentiable = SIZE_MAX;

  static void save(Context& context, c10::OperatorHandle const& op, Values /*arguments*/, Values /*results*/) {
    context.saved_data["name"] = op.schema().name().substr(std::string("headway::").size());
  }
  static variable_list backward(Context& context, variable_list /*grads*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch.ops.headway.", context.saved_data.at("name").toStringRef(),
                                " has no gradient: second derivatives are not there");
    return {};
  }
};

/// An operator of this library, called through the dispatcher: its own gradient rule applies, and compilers see it.
class Operator {
 public:
  explicit Operator(char const* name) : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")) {}

  /// @param arguments in the order of the schema; lists as std::vector
  /// @returns the results
  template <class... Arguments>
  Stack operator()(Arguments&&... arguments) const {
    Stack stack;
    torch::jit::push(stack, std::forward<Arguments>(arguments)...);
    return call(std::move(stack));
  }
  [[nodiscard]] Stack call(Stack stack) const {
    handle_.callBoxed(&stack);
    return stack;
  }

 private:
  c10::OperatorHandle handle_;
};

}  // namespace headway::kernels
