#pragma once

#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/table.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Keys as tensors. Torch's integers have a sign, ours none: the bits are the same.
struct KeyTensors {
  /// @param ids (K,) int64
  /// @param tables (K,) int32, or one number for all
  /// @param counts (K,) int32, or none: one lookup each
  /// @throws comm::UsageError if a tensor is of another type, shape or device
  KeyTensors(at::Tensor ids, std::optional<at::Tensor> tables, std::int64_t table, std::optional<at::Tensor> counts);

  at::Tensor ids;
  std::optional<at::Tensor> tables;
  std::uint32_t table;
  std::optional<at::Tensor> counts;

  [[nodiscard]] Keys view() const;
};

/// What `tensor` holds. @throws comm::UsageError unless it is of `type`, contiguous and on the CPU
template <class T>
std::span<T> span_of(at::Tensor const& tensor, at::ScalarType type, char const* name);

std::span<float const> floats_of(at::Tensor const& tensor, char const* name);

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

}  // namespace headway::embedding
