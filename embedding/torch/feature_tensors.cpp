// SPDX-License-Identifier: Apache-2.0

// Checks the tensors of features, so that C++ may read their memory as arrays of the types that features have.

#include "feature_tensors.hpp"

#include "devices.hpp"
#include "headway/base/status.hpp"

#include <string>
#include <utility>

namespace headway::embedding {

namespace {

// Does not use std::ostream: toolchains that link it statically break it in an extension that is loaded beside others.
std::string type_and_shape_of(at::Tensor const& tensor) {
  std::string shape;
  for (auto const size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return std::string(at::toString(tensor.scalar_type())) + " of shape [" + shape + "]";
}

[[noreturn]] void refuse(std::string const& feature, std::string const& why) {
  throw base::UsageError("feature " + feature + ": " + why);
}

}  // namespace

FeatureTensors::FeatureTensors(std::vector<std::string> names, std::vector<std::uint32_t> tables,
                               std::vector<Pooling> poolings, at::Device device)
    : names_(std::move(names)), tables_(std::move(tables)), poolings_(std::move(poolings)), device_(device) {
  base::expects(names_.size() == tables_.size() && names_.size() == poolings_.size(),
                "features need a name, a table and a pooling each");
}

std::vector<Feature> FeatureTensors::features(std::vector<at::Tensor> const& ids,
                                              std::vector<at::Tensor> const& lengths,
                                              std::vector<std::optional<at::Tensor>> const& weights,
                                              std::vector<at::Tensor>& held) const {
  std::size_t const count = names_.size();
  base::expects(ids.size() == count && lengths.size() == count && weights.size() == count,
                "not one tensor of values, lengths and weights for each of " + std::to_string(count) + " features");
  // The features view the memory of these tensors, so the caller keeps them.
  held.reserve(held.size() + 3 * count);
  std::vector<Feature> features(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto& feature = features[i];
    feature = {.name = names_[i],
               .table = tables_[i],
               .pooling = poolings_[i],
               .ids = integers_of(i, "values", held.emplace_back(ids[i])),
               .lengths = integers_of(i, "lengths", held.emplace_back(lengths[i]))};
    if (weights[i]) feature.weights = weights_of(i, feature.ids.size, held.emplace_back(*weights[i]));
  }
  return features;
}

Integers FeatureTensors::integers_of(std::size_t feature, char const* what, at::Tensor& tensor) const {
  bool const is_wide = tensor.scalar_type() == at::kLong;
  if (tensor.dim() != 1 || (!is_wide && tensor.scalar_type() != at::kInt) || tensor.device() != device_) {
    refuse(names_[feature], std::string(what) + " must be int64 or int32 of one dimension on " + name_of(device_) +
                                ", not " + type_and_shape_of(tensor) + " on " + name_of(tensor.device()));
  }
  tensor = tensor.contiguous();
  return {.data = tensor.const_data_ptr(), .size = static_cast<std::size_t>(tensor.numel()), .are_wide = is_wide};
}

std::span<float const> FeatureTensors::weights_of(std::size_t feature, std::size_t num_ids, at::Tensor& tensor) const {
  if (tensor.device() != device_) {
    refuse(names_[feature], "weights must be on " + name_of(device_) + ", not on " + name_of(tensor.device()));
  }
  if (tensor.dim() != 1 || static_cast<std::size_t>(tensor.numel()) != num_ids) {
    refuse(names_[feature], std::to_string(tensor.numel()) + " weights for " + std::to_string(num_ids) + " values");
  }
  if (tensor.requires_grad()) refuse(names_[feature], "weights get no gradient; detach them");
  tensor = tensor.to(at::kFloat).contiguous();
  return floats_of(tensor, device_, "weights");
}

}  // namespace headway::embedding
