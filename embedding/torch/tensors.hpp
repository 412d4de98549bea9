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

/// What `tensor` holds. @throws comm::UsageError unless it is of `type`, contiguous and on `device`
template <class T>
std::span<T> span_of(at::Tensor const& tensor, at::ScalarType type, at::Device device, char const* name);

std::span<float const> floats_of(at::Tensor const& tensor, at::Device device, char const* name);

/// How many columns `values` has. @throws comm::UsageError unless it has two dimensions
std::int64_t width_of(at::Tensor const& values);

/// Keys as tensors, all on one device. Torch's integers have a sign, ours none: the bits are the same.
struct KeyTensors {
  /// @param ids (K,) int64
  /// @param tables (K,) int32, or one number for all
  /// @param counts (K,) int32, or none: one lookup each
  /// @param num_known (1,) int32, of keys on a CUDA device: how many of `ids` there are; none: all
  /// @throws comm::UsageError if a tensor is of another type, shape or device
  KeyTensors(at::Tensor ids, std::optional<at::Tensor> tables, std::int64_t table, std::optional<at::Tensor> counts,
             bool are_unique = false, std::optional<at::Tensor> num_known = std::nullopt);

  at::Tensor ids;
  std::optional<at::Tensor> tables;
  std::uint32_t table;
  std::optional<at::Tensor> counts;
  bool are_unique;
  std::optional<at::Tensor> num_known;

  [[nodiscard]] at::Device device() const { return ids.device(); }
  /// @throws comm::UsageError unless they are on `device`
  [[nodiscard]] Keys view(at::Device device) const;
  /// The first `size` of them, all of which are there.
  [[nodiscard]] KeyTensors narrow(std::int64_t size) const;
  /// A copy, or the same ones if they are there.
  [[nodiscard]] KeyTensors to(at::Device other) const;
};

/// A tensor over the memory of `values`, which `owner` keeps.
template <class T>
at::Tensor view_of(std::vector<T> const& values, std::shared_ptr<void const> owner, at::ScalarType type) {
  return at::from_blob(
      const_cast<T*>(values.data()), {static_cast<std::int64_t>(values.size())}, [owner = std::move(owner)](void*) {},
      at::TensorOptions(type));
}

/// A tensor that takes `values` over.
template <class T>
at::Tensor tensor_of(std::vector<T> values, at::ScalarType type) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return view_of(*owner, owner, type);
}

inline at::Tensor empty(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::empty(shape, at::TensorOptions(type).device(device));
}

}  // namespace headway::embedding
