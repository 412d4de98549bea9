#include "list_arguments.hpp"

namespace headway::kernels {

void expect_list(at::Tensor const& list, char const* name, at::ScalarType type, at::Device device,
                 std::optional<std::int64_t> size) {
  TORCH_CHECK_VALUE(list.dim() == 1 && list.is_contiguous() && list.scalar_type() == type && list.device() == device,
                    name, " must be one contiguous dimension of ", c10::getDtypeNames(type).first, " on ", device,
                    ", not ", c10::getDtypeNames(list.scalar_type()).first, " ", list.sizes(), " on ", list.device());
  TORCH_CHECK_VALUE(!size || list.size(0) == *size, name, " has ", list.size(0), " entries, and ", *size,
                    " are needed");
}

}  // namespace headway::kernels
