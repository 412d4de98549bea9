// SPDX-License-Identifier: Apache-2.0

// Checks and views of tensors. torch has no unsigned 64-bit ids that all its functions accept, so ids travel as int64
// and counts as int32, and the C++ side reads the same bits as unsigned. Example: the id 2^63 + 1 is -2^63 + 1 in the
// tensor. Ids are compared and hashed, never added, so the sign does not matter.

#include "tensors.hpp"

#include "devices.hpp"
#include "headway/base/status.hpp"

#include <limits>
#include <string>

namespace headway::embedding {

namespace {

std::span<std::uint32_t const> words_of(std::optional<at::Tensor> const& tensor, at::Device device, char const* name) {
  if (!tensor) return {};
  return span_of<std::uint32_t>(*tensor, at::kInt, device, name);
}

std::optional<at::Tensor> narrow(std::optional<at::Tensor> const& tensor, std::int64_t size) {
  return tensor ? std::optional(tensor->narrow(0, 0, size)) : std::nullopt;
}

std::optional<at::Tensor> copy_to(std::optional<at::Tensor> const& tensor, at::Device device) {
  return tensor ? std::optional(tensor->to(device)) : std::nullopt;
}

}  // namespace

template <class T>
std::span<T> span_of(at::Tensor const& tensor, at::ScalarType type, at::Device device, char const* name) {
  // Builds the message only in the error case: a step checks about forty tensors.
  if (tensor.scalar_type() != type || !tensor.is_contiguous() || tensor.device() != device) {
    throw base::UsageError(std::string(name) + " must be a contiguous " + at::toString(type) + " tensor on " +
                           name_of(device) + ", not " + at::toString(tensor.scalar_type()) + " on " +
                           name_of(tensor.device()));
  }
  return {static_cast<T*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

template std::span<std::uint8_t> span_of(at::Tensor const&, at::ScalarType, at::Device, char const*);
template std::span<std::uint32_t> span_of(at::Tensor const&, at::ScalarType, at::Device, char const*);
template std::span<std::int64_t> span_of(at::Tensor const&, at::ScalarType, at::Device, char const*);
template std::span<std::uint64_t> span_of(at::Tensor const&, at::ScalarType, at::Device, char const*);
template std::span<float> span_of(at::Tensor const&, at::ScalarType, at::Device, char const*);

std::span<float const> floats_of(at::Tensor const& tensor, at::Device device, char const* name) {
  return span_of<float>(tensor, at::kFloat, device, name);
}

std::int64_t width_of(at::Tensor const& values) {
  base::expects(values.dim() == 2, "values must have two dimensions, not " + std::to_string(values.dim()));
  return values.size(1);
}

KeyTensors::KeyTensors(at::Tensor the_ids, std::optional<at::Tensor> the_tables, std::int64_t the_table,
                       std::optional<at::Tensor> the_counts, bool the_keys_are_unique,
                       std::optional<at::Tensor> the_num_known)
    : ids(std::move(the_ids)),
      tables(std::move(the_tables)),
      table(static_cast<std::uint32_t>(the_table)),
      counts(std::move(the_counts)),
      are_unique(the_keys_are_unique),
      num_known(std::move(the_num_known)) {
  if (the_table < 0 || the_table > std::numeric_limits<std::uint32_t>::max()) {
    throw base::UsageError("there is no table " + std::to_string(the_table));
  }
  if (!device().is_cpu() && !device().is_cuda()) {
    throw base::UsageError("keys are on the CPU or CUDA devices, not " + device().str());
  }
  auto const size = span_of<std::uint64_t>(ids, at::kLong, device(), "ids").size();
  if (ids.dim() != 1) throw base::UsageError("ids must have one dimension, not " + std::to_string(ids.dim()));
  if (tables) base::expects(words_of(tables, device(), "tables").size() == size, "not one table for each key");
  if (counts) base::expects(words_of(counts, device(), "counts").size() == size, "not one count for each key");
  if (!num_known) return;
  base::expects(device().is_cuda(), "num_known is for keys on CUDA devices");
  base::expects(words_of(num_known, device(), "num_known").size() == 1, "num_known must be one number");
}

Keys KeyTensors::view(at::Device device) const {
  return {.ids = span_of<std::uint64_t>(ids, at::kLong, device, "ids"),
          .tables = words_of(tables, device, "tables"),
          .table = table,
          .counts = words_of(counts, device, "counts"),
          .are_unique = are_unique,
          .num_known = num_known ? words_of(num_known, device, "num_known").data() : nullptr};
}

KeyTensors KeyTensors::narrow(std::int64_t size) const {
  if (size == ids.numel() && !num_known) return *this;
  return {ids.narrow(0, 0, size), embedding::narrow(tables, size), table, embedding::narrow(counts, size), are_unique};
}

KeyTensors KeyTensors::to(at::Device other) const {
  return {ids.to(other), copy_to(tables, other), table, copy_to(counts, other), are_unique, copy_to(num_known, other)};
}

}  // namespace headway::embedding
