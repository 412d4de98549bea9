#pragma once

#include "headway/kernels/element_type.hpp"
#include "torch_headers.hpp"

namespace headway::kernels {

/// Element type of a tensor.
/// @throws c10::ValueError that names `op` and `name` if kernels do not support the tensor's type
[[nodiscard]] ElementType element_type(at::Tensor const& tensor, char const* op, char const* name);

}  // namespace headway::kernels
