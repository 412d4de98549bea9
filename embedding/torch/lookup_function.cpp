// SPDX-License-Identifier: Apache-2.0

// The node of autograd of a lookup: one for all tables of a collection.
//
// Idea: its inputs are one dummy parameter per merged table (an anchor) and the per-id weights that require a gradient.
// A merged table is several tables of equal configuration that share rows and exchanges. Its outputs are the embeddings
// of the features. Its backward pass joins the gradients of the features of each merged table, and sends them to the
// ranks that own the rows, where they wait for TensorLookup::apply(). So anchors never get a gradient from it.
//
// expand() copies the embedding of each unique key to the bags that have the key, and adds them up there.
//
// Example: features "user" and "tags" share a merged table. Their embeddings are two views of one array of bags. If
// autograd gives back two adjacent views, they are used as one array without a copy.
//
// Invariant: the node keeps its lookup and its batch alive until it has run, or is freed.
// Complexity: O(features) on the host.

#include "lookup_function.hpp"

#include "batch_memory.hpp"

#include <torch/csrc/autograd/functions/basic_ops.h>

#include <cstdint>
#include <memory>

namespace headway::embedding {

namespace {

/// A tensor that raises if it is differentiated: second derivatives are not supported.
at::Tensor without_gradient(at::Tensor const& tensor) {
  at::AutoGradMode const with_grad(true);
  auto const input = tensor.detach().requires_grad_();
  auto const error = std::make_shared<torch::autograd::DelayedError>(
      "embeddings of a HashTableCollection have no second derivative", 1);
  return (*error)({input}).front();
}

}  // namespace

struct ExpandFunction : torch::autograd::Function<ExpandFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static Tensors forward(Context* context, c10::intrusive_ptr<TensorLookup> const& lookup,
                         TensorLookup::BatchPtr const& batch, at::TensorList inputs) {
    at::AutoDispatchBelowADInplaceOrView const below;
    context->set_materialize_grads(false);
    context->saved_data["batch"] = c10::IValue::make_capsule(batch);
    context->saved_data["num_inputs"] = static_cast<std::int64_t>(inputs.size());
    context->saved_data["lookup"] = c10::IValue::make_capsule(lookup);
    return lookup->expand(*batch);
  }

  static Tensors backward(Context* context, Tensors const& gradients) {
    static_cast<void>(context->get_saved_variables());  // Throws in a second pass over a graph that was not retained.
    bool const makes_graph = at::GradMode::is_enabled();
    at::NoGradGuard const no_grad;
    auto const batch = c10::static_intrusive_pointer_cast<TensorBatch>(context->saved_data.at("batch").toCapsule());
    auto const lookup = c10::static_intrusive_pointer_cast<TensorLookup>(context->saved_data.at("lookup").toCapsule());
    auto const num_inputs = static_cast<std::size_t>(context->saved_data.at("num_inputs").toInt());
    lookup->take_gradients(batch, gradients);
    Tensors result(2 + num_inputs);  // The lookup and the batch have none.
    // The anchors before get none. `learned_` lists the per-id weights that require a gradient.
    std::size_t next = result.size() - batch->learned_.size();
    for (auto const& learned : batch->learned_) {
      auto const& of_feature = gradients[learned.feature];
      if (of_feature.defined()) result[next] = lookup->gradient_of_weights(*batch, learned, of_feature);
      if (of_feature.defined() && makes_graph) result[next] = without_gradient(result[next]);
      ++next;
    }
    return result;
  }
};

std::vector<at::Tensor> expand_with_gradient(c10::intrusive_ptr<TensorLookup> const& lookup,
                                             TensorLookup::BatchPtr const& batch,
                                             std::vector<at::Tensor> const& inputs) {
  return ExpandFunction::apply(lookup, batch, at::TensorList(inputs));
}

}  // namespace headway::embedding
