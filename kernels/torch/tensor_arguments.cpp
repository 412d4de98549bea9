// SPDX-License-Identifier: Apache-2.0

// Checks of tensor arguments that all operators share. Errors name the operator, the argument, and what it is instead.

#include "tensor_arguments.hpp"

namespace headway::kernels {

ElementType element_type(at::Tensor const& tensor, char const* op, char const* name) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return ElementType::kFloat64;
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kBFloat16:
      return ElementType::kBfloat16;
    case at::kHalf:
      return ElementType::kFloat16;
    default:
      TORCH_CHECK_VALUE(false, op, ": ", name, " must be float64, float32, bfloat16 or float16, not ",
                        tensor.scalar_type());
  }
}

void expect_list(at::Tensor const& list, char const* name, at::ScalarType type, at::Device device,
                 std::optional<std::int64_t> size) {
  TORCH_CHECK_VALUE(list.dim() == 1 && list.is_contiguous() && list.scalar_type() == type && list.device() == device,
                    name, " must be one contiguous dimension of ", c10::getDtypeNames(type).first, " on ", device,
                    ", not ", c10::getDtypeNames(list.scalar_type()).first, " ", list.sizes(), " on ", list.device());
  TORCH_CHECK_VALUE(!size || list.size(0) == *size, name, " has ", list.size(0), " entries, and ", *size,
                    " are needed");
}

}  // namespace headway::kernels
