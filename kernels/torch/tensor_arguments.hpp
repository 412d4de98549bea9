// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/element_type.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <optional>

namespace headway::kernels {

/// Element type of a tensor.
/// @throws c10::ValueError that names `op` and `name` if kernels do not support the tensor's type
[[nodiscard]] ElementType element_type(at::Tensor const& tensor, char const* op, char const* name);

/// Checks that `list` is a contiguous tensor of one dimension, of type `type` on `device`.
/// @param name name of an operator's argument, for errors
/// @param size number of entries, if it must have a certain one
/// @throws c10::ValueError if it is not
void expect_list(at::Tensor const& list, char const* name, at::ScalarType type, at::Device device,
                 std::optional<std::int64_t> size = std::nullopt);

/// Memory of a list that passes expect_list().
template <class T = std::int64_t>
T const* list_of(at::Tensor const& list, char const* name, at::Device device,
                 std::optional<std::int64_t> size = std::nullopt) {
  expect_list(list, name, c10::CppTypeToScalarType<T>::value, device, size);
  return list.const_data_ptr<T>();
}
/// Same; null if there is no list.
template <class T = std::int64_t>
T const* list_of(std::optional<at::Tensor> const& list, char const* name, at::Device device,
                 std::optional<std::int64_t> size = std::nullopt) {
  return list ? list_of<T>(*list, name, device, size) : nullptr;
}

}  // namespace headway::kernels
