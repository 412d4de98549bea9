// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <optional>
#include <string_view>

namespace headway::c10d_backend {

/// Type and operation with which Gloo reduces a tensor, such that converting the result back equals the reduction in
/// the tensor's own type, bit by bit for integers.
struct GlooReduction {
  at::ScalarType type;  ///< If it differs from the tensor's type, the elements are converted.
  /// May differ from the requested one if both give the same result for this type.
  c10d::ReduceOp::RedOpType operation;
  bool flips_sign = false;  ///< Invert the top bit: unsigned order becomes signed order.
};

/// Type and operation with which Gloo reduces; none if Gloo cannot reduce them.
std::optional<GlooReduction> gloo_reduction(at::ScalarType type, c10d::ReduceOp::RedOpType operation);

/// True if Gloo can add sparse tensors of `type`.
bool gloo_adds_sparse(at::ScalarType type);

/// Name in Python: "SUM".
std::string_view name_of_operation(c10d::ReduceOp::RedOpType operation);

}  // namespace headway::c10d_backend
