// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/table.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// View of the elements of `tensor`. @param name of the tensor in the error
/// @throws base::UsageError unless it is of `type`, contiguous and on `device`
template <class T>
std::span<T> span_of(at::Tensor const& tensor, at::ScalarType type, at::Device device, char const* name);

/// span_of() a float32 tensor.
std::span<float const> floats_of(at::Tensor const& tensor, at::Device device, char const* name);

/// Number of columns of `values`. @throws base::UsageError unless it has two dimensions
std::int64_t width_of(at::Tensor const& values);

/// Keys as tensors, all on one device. Tensors hold signed integers, the C++ side unsigned ones with the same bits.
/// Example: ids 5 6 5, tables 0 0 1: three different keys. Without `tables`, ids 5 6 5 are two different keys.
struct KeyTensors {
  /// @param ids (K,) int64
  /// @param tables (K,) int32, or none: all keys are of `table`
  /// @param counts (K,) int32 lookups per key, or none: one each
  /// @param are_unique the caller guarantees that no key repeats
  /// @param num_known (1,) int32, CUDA only: number of valid `ids`, a prefix; none: all
  /// @throws base::UsageError if a tensor is of another type, shape or device
  KeyTensors(at::Tensor ids, std::optional<at::Tensor> tables, std::int64_t table, std::optional<at::Tensor> counts,
             bool are_unique = false, std::optional<at::Tensor> num_known = std::nullopt);

  at::Tensor ids;
  std::optional<at::Tensor> tables;
  std::uint32_t table;
  std::optional<at::Tensor> counts;
  bool are_unique;
  std::optional<at::Tensor> num_known;

  [[nodiscard]] at::Device device() const { return ids.device(); }
  /// View for calls of Table. @throws base::UsageError unless the keys are on `device`
  [[nodiscard]] Keys view(at::Device device) const;
  /// The first `size` keys, without `num_known`.
  [[nodiscard]] KeyTensors narrow(std::int64_t size) const;
  /// The keys on another device: a copy, or the same tensors if they are there already.
  [[nodiscard]] KeyTensors to(at::Device other) const;
};

/// A tensor that shares the memory of `values`. `owner` keeps that memory alive.
template <class T>
at::Tensor view_of(std::vector<T> const& values, std::shared_ptr<void const> owner, at::ScalarType type) {
  return at::from_blob(
      const_cast<T*>(values.data()), {static_cast<std::int64_t>(values.size())}, [owner = std::move(owner)](void*) {},
      at::TensorOptions(type));
}

/// A tensor that owns `values`, without a copy.
template <class T>
at::Tensor tensor_of(std::vector<T> values, at::ScalarType type) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return view_of(*owner, owner, type);
}

/// An uninitialised tensor.
inline at::Tensor empty(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::empty(shape, at::TensorOptions(type).device(device));
}

}  // namespace headway::embedding
