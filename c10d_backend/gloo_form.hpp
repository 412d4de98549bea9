#pragma once

#include "torch_headers.hpp"

#include <optional>
#include <string_view>

namespace headway::c10d_backend {

/// How Gloo gets the elements of a tensor for one reduction, so that converting the result back gives the reduction of
/// the tensor's own type, bit by bit for integers.
struct GlooForm {
  at::ScalarType type;                  ///< Another type than the tensor's: its elements are converted.
  c10d::ReduceOp::RedOpType operation;  ///< Another one than asked for: it gives the same for this type.
  bool flips_sign = false;              ///< The top bit is inverted: unsigned order becomes signed order.
};

/// None: Gloo cannot reduce elements of `type` with `operation`.
std::optional<GlooForm> gloo_form(at::ScalarType type, c10d::ReduceOp::RedOpType operation);

/// Whether Gloo can add sparse tensors of `type`.
bool gloo_adds_sparse(at::ScalarType type);

/// Name as in Python: "SUM".
std::string_view name_of_operation(c10d::ReduceOp::RedOpType operation);

}  // namespace headway::c10d_backend
