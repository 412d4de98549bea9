#pragma once

#include "torch_headers.hpp"

#include <cstdint>
#include <optional>

namespace headway::kernels {

/// @param name of an operator's argument, for errors
/// @throws c10::ValueError unless `list` is one dimension of contiguous `type` on `device`, of `size` entries if that
/// is given
void expect_list(at::Tensor const& list, char const* name, at::ScalarType type, at::Device device,
                 std::optional<std::int64_t> size = std::nullopt);

/// The memory of a list that is as expect_list() wants it.
template <class T = std::int64_t>
T const* list_of(at::Tensor const& list, char const* name, at::Device device,
                 std::optional<std::int64_t> size = std::nullopt) {
  expect_list(list, name, c10::CppTypeToScalarType<T>::value, device, size);
  return list.const_data_ptr<T>();
}
/// Null where there is none.
template <class T = std::int64_t>
T const* list_of(std::optional<at::Tensor> const& list, char const* name, at::Device device,
                 std::optional<std::int64_t> size = std::nullopt) {
  return list ? list_of<T>(*list, name, device, size) : nullptr;
}

}  // namespace headway::kernels
