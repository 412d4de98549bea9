#pragma once

#include "headway/kernels/element_type.hpp"
#include "torch_headers.hpp"

namespace headway::kernels {

/// @throws c10::ValueError if kernels do not compute with elements of this tensor, `name` of `op`
[[nodiscard]] ElementType element_type(at::Tensor const& tensor, char const* op, char const* name);

}  // namespace headway::kernels
