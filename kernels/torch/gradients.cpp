// SPDX-License-Identifier: Apache-2.0

// Gradient rules of the operators torch.ops.headway.*: what each call keeps, and which operator its backward pass
// calls. autograd.hpp tells what a rule is. Moves of rows come in pairs, of which each is the backward pass of the
// other: concat and split, to_padded and to_jagged, sum and expand, dispatch (to rank order) and combine (back).
//
// Rules index arguments and results by their positions in the operator's schema (TORCH_LIBRARY_FRAGMENT in the files
// *_operators.cpp).

#include "autograd.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace headway::kernels {

namespace {

/// Keeps all arguments of a call, none of which is a list of tensors, and `more` tensors.
void save_all(Context& context, Values arguments, variable_list more = {}) {
  variable_list tensors = std::move(more);
  std::vector<c10::IValue> others;
  for (auto const& argument : arguments) {
    tensors.push_back(argument.isTensor() ? argument.toTensor() : at::Tensor());
    others.push_back(argument.isTensor() ? c10::IValue() : argument);
  }
  context.save_for_backward(std::move(tensors));
  context.saved_data["others"] = c10::ivalue::Tuple::create(std::move(others));
}

/// Appends what save_all() kept: `saved` without the tensors `more`.
void push_all(Stack& stack, Context& context, c10::ArrayRef<at::Tensor> saved) {
  auto const& others = context.saved_data.at("others").toTupleRef().elements();
  for (std::size_t i = 0; i < saved.size(); ++i)
    stack.push_back(saved[i].defined() ? c10::IValue(saved[i]) : others[i]);
}

/// None for an undefined tensor.
c10::IValue optional(at::Tensor const& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); }

c10::SymInt num_rows(c10::IValue const& rows) { return rows.toTensor().sym_size(0); }

struct AttentionRule : FirstResult {
  // Positions in the schema of the operator, and of gradients of bias weights among the results of the backward pass.
  static constexpr std::size_t kPositionWeights = 6, kTimeWeights = 7;
  static constexpr std::size_t kPositionGradient = 3, kTimeGradient = 4;

  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_all(context, arguments);
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const attention_backward("headway::hstu_attention_backward");
    auto const saved = context.get_saved_variables();
    Stack stack;
    stack.emplace_back(grads[0]);
    push_all(stack, context, saved);
    auto const results = attention_backward.call(std::move(stack));
    // Inputs: q, k, v, offsets, key_offsets, and the bias weights that are there.
    // With query runs the operator returns gradients of keys and values in a wider type.
    auto const of_input = [&](std::size_t i) { return results[i].toTensor().to(saved[i].scalar_type()); };
    variable_list gradients{results[0].toTensor(), of_input(1), of_input(2), {}, {}};
    if (saved[kPositionWeights].defined()) gradients.push_back(results[kPositionGradient].toTensor());
    if (saved[kTimeWeights].defined()) gradients.push_back(results[kTimeGradient].toTensor());
    return gradients;
  }
};

struct GatedNormRule : FirstResult {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values results) {
    save_all(context, arguments, {results[1].toTensor()});
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const norm_backward("headway::gated_norm_backward");
    auto const saved = context.get_saved_variables();
    auto const& statistics = saved[0];
    auto const inputs = c10::ArrayRef(saved).slice(1);
    Stack stack;
    torch::jit::push(stack, grads[0], statistics, c10::IValue());  // No residual (a gradient of x to add).
    push_all(stack, context, inputs);
    auto const results = norm_backward.call(std::move(stack));
    variable_list gradients;
    for (std::size_t i = 0; i < results.size(); ++i) {  // x, gate, weight, bias
      if (inputs[i].defined()) gradients.push_back(results[i].toTensor());
    }
    return gradients;
  }
};

struct SiluSplitRule : FirstResult {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    context.save_for_backward({arguments[0].toTensor()});
    context.saved_data["activated"] = arguments[2];
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const split_backward("headway::silu_split_backward");
    return {split_backward(std::move(grads), context.get_saved_variables()[0], context.saved_data.at("activated"))[0]
                .toTensor()};
  }
};

struct ConcatRule : FirstResult {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    context.save_for_backward(arguments[1].toTensorVector());
    std::vector<c10::SymInt> counts;
    for (at::Tensor const& each : arguments[0].toTensorList()) counts.push_back(each.sym_size(0));
    context.saved_data["num_rows"] = c10::IValue(c10::SymIntArrayRef(counts));
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const split("headway::jagged_split");
    return split(grads[0], context.get_saved_variables(), context.saved_data.at("num_rows"))[0].toTensorVector();
  }
};

struct SplitRule : FirstResult {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    context.save_for_backward(arguments[1].toTensorVector());
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const concat("headway::jagged_concat");
    return {concat(std::move(grads), context.get_saved_variables())[0].toTensor()};
  }
};

/// Base of rules that keep the offsets, the second argument, and a size.
struct OffsetsRule : FirstResult {
  static void save_offsets(Context& context, Values arguments, c10::SymInt const& size) {
    context.save_for_backward({arguments[1].toTensor()});
    context.saved_data["size"] = size;
  }
  static at::Tensor offsets(Context& context) { return context.get_saved_variables()[0]; }
  static c10::IValue size(Context& context) { return context.saved_data.at("size"); }

  static at::Tensor to_padded(Context& context, at::Tensor const& grad) {
    static Operator const to_padded("headway::jagged_to_padded");
    return to_padded(grad, offsets(context), size(context), at::Scalar(0))[0].toTensor();
  }
};

struct ToPaddedRule : OffsetsRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_offsets(context, arguments, num_rows(arguments[0]));
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const to_jagged("headway::padded_to_jagged");
    return {to_jagged(grads[0], offsets(context), size(context))[0].toTensor()};
  }
};

struct ToJaggedRule : OffsetsRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_offsets(context, arguments, arguments[0].toTensor().sym_size(1));
  }
  static variable_list backward(Context& context, variable_list grads) { return {to_padded(context, grads[0])}; }
};

struct AddDenseRule : OffsetsRule {
  static constexpr std::size_t kDense = 2;  ///< Position among the inputs.

  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_offsets(context, arguments, arguments[kDense].toTensor().sym_size(1));
  }
  static variable_list backward(Context& context, variable_list grads) {
    return {grads[0], {}, context.needs_input_grad(kDense) ? to_padded(context, grads[0]) : at::Tensor()};
  }
};

struct ExpandRule : OffsetsRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_offsets(context, arguments, num_rows(arguments[0]));
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const reduce("headway::jagged_reduce");
    return {reduce(grads[0], offsets(context), "sum")[0].toTensor()};
  }
};

struct ReduceRule : OffsetsRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_offsets(context, arguments, num_rows(arguments[0]));
    context.saved_data["is_mean"] = arguments[2].toStringRef() == "mean";
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const expand("headway::jagged_expand");
    at::Tensor grad = grads[0];
    at::Tensor const saved = offsets(context);  // Once: activation checkpointing lets a saved tensor be read once.
    if (context.saved_data.at("is_mean").toBool()) {
      std::vector<std::int64_t> shape(static_cast<std::size_t>(grad.dim()), 1);
      shape[0] = -1;
      grad = (grad / saved.diff().clamp_min(1).view(shape)).to(grad.scalar_type());
    }
    return {expand(grad, saved, size(context))[0].toTensor()};
  }
};

/// Base of rules of operators that move the rows of several tensors. Ids have no gradient, and results that nobody uses
/// have none either: backward passes move only the others.
struct MoveRule : FirstResult {
  static void save_tensors(Context& context, variable_list tensors) {
    context.set_materialize_grads(false);
    context.save_for_backward(std::move(tensors));
  }

  /// @param move_back takes the gradients that are there, and returns the results of the operator that moves them
  template <class MoveBack>
  static variable_list move_gradients(Context& context, variable_list const& grads, MoveBack const& move_back) {
    variable_list moved, gradients(grads.size());
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !context.needs_input_grad(i)) continue;
      positions.push_back(i);
      moved.push_back(grads[i]);
    }
    if (moved.empty()) return gradients;
    auto const back = move_back(std::move(moved))[0].toTensorVector();
    for (std::size_t i = 0; i < back.size(); ++i) gradients[positions[i]] = back[i];
    return gradients;
  }
};

struct PermuteRule : MoveRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values results) {
    auto const tensor_or_none = [&](std::size_t i) {
      return arguments[i].isTensor() ? arguments[i].toTensor() : at::Tensor();
    };
    // Offsets after and before the move, then the lists of features and samples.
    save_tensors(context, {results[2].toTensor(), results[3].toTensor(), tensor_or_none(2), tensor_or_none(3)});
    at::Tensor const lengths = arguments[1].toTensor();
    context.saved_data["num_features"] = lengths.sym_size(0);
    context.saved_data["num_samples"] = lengths.sym_size(1);
    context.saved_data["num_rows"] = num_rows(arguments[0].toListRef()[0]);
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const permute_backward("headway::jagged_permute_backward");
    auto const saved = context.get_saved_variables();
    return move_gradients(context, grads, [&](variable_list moved) {
      auto const& sizes = context.saved_data;
      return permute_backward(std::move(moved), saved[0], saved[1], optional(saved[2]), optional(saved[3]),
                              sizes.at("num_features"), sizes.at("num_samples"), sizes.at("num_rows"));
    });
  }
};

struct TransposeRule : MoveRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values /*arguments*/, Values results) {
    save_tensors(context, {results[1].toTensor()});
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const transpose("headway::jagged_transpose");
    auto const saved = context.get_saved_variables();
    return move_gradients(context, grads, [&](variable_list moved) { return transpose(std::move(moved), saved[0]); });
  }
};

struct DispatchRule : MoveRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values results) {
    // Lengths of the output, and the bounds of the ranks' samples.
    save_tensors(context, {results[1].toTensor(), arguments[2].toTensor()});
    context.saved_data["num_features"] = arguments[1].toTensor().sym_size(0);
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const combine("headway::ranged_combine");
    auto const saved = context.get_saved_variables();
    return move_gradients(context, grads, [&](variable_list moved) {
      return combine(std::move(moved), saved[0], saved[1], context.saved_data.at("num_features"));
    });
  }
};

struct CombineRule : MoveRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values results) {
    save_tensors(context, {results[1].toTensor(), arguments[2].toTensor()});
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const dispatch("headway::ranged_dispatch");
    auto const saved = context.get_saved_variables();
    return move_gradients(context, grads,
                          [&](variable_list moved) { return dispatch(std::move(moved), saved[0], saved[1]); });
  }
};

struct DispatchDenseRule : MoveRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_tensors(context, {arguments[1].toTensor()});
    context.saved_data["num_features"] = num_rows(arguments[0].toListRef()[0]);
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const combine("headway::ranged_combine_dense");
    auto const saved = context.get_saved_variables();
    return move_gradients(context, grads, [&](variable_list moved) {
      return combine(std::move(moved), saved[0], context.saved_data.at("num_features"));
    });
  }
};

struct CombineDenseRule : MoveRule {
  static void save(Context& context, c10::OperatorHandle const& /*op*/, Values arguments, Values /*results*/) {
    save_tensors(context, {arguments[1].toTensor()});
  }
  static variable_list backward(Context& context, variable_list grads) {
    static Operator const dispatch("headway::ranged_dispatch_dense");
    auto const saved = context.get_saved_variables();
    return move_gradients(context, grads, [&](variable_list moved) { return dispatch(std::move(moved), saved[0]); });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(headway, Autograd, library) {
  register_gradient<AttentionRule>(library, "hstu_attention");
  register_gradient<GatedNormRule>(library, "gated_norm");
  register_gradient<SiluSplitRule>(library, "silu_split");
  register_gradient<ConcatRule>(library, "jagged_concat");
  register_gradient<SplitRule>(library, "jagged_split");
  register_gradient<ToPaddedRule>(library, "jagged_to_padded");
  register_gradient<ToJaggedRule>(library, "padded_to_jagged");
  register_gradient<AddDenseRule>(library, "jagged_add_dense");
  register_gradient<ExpandRule>(library, "jagged_expand");
  register_gradient<ReduceRule>(library, "jagged_reduce");
  register_gradient<PermuteRule>(library, "jagged_permute");
  register_gradient<TransposeRule>(library, "jagged_transpose");
  register_gradient<DispatchRule>(library, "ranged_dispatch");
  register_gradient<CombineRule>(library, "ranged_combine");
  register_gradient<DispatchDenseRule>(library, "ranged_dispatch_dense");
  register_gradient<CombineDenseRule>(library, "ranged_combine_dense");
  for (auto const* name :
       {"hstu_attention_backward", "gated_norm_backward", "silu_split_backward", "jagged_permute_backward"}) {
    register_gradient<NoGradient>(library, name);
  }
}

}  // namespace headway::kernels
