#include "element_types.hpp"

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

}  // namespace headway::kernels
