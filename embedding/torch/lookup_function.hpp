// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor_lookup.hpp"

#include <vector>

namespace headway::embedding {

/// The embeddings of a finished batch, as outputs of one node of autograd. lookup_function.cpp explains it.
/// @param inputs anchors of the merged tables, then the per-id weights of the batch that require a gradient
/// @returns (outputs) one tensor per feature or merged table, as for TensorLookup::finish()
[[nodiscard]] std::vector<at::Tensor> expand_with_gradient(c10::intrusive_ptr<TensorLookup> const& lookup,
                                                           TensorLookup::BatchPtr const& batch,
                                                           std::vector<at::Tensor> const& inputs);

}  // namespace headway::embedding
