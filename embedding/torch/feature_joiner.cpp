// SPDX-License-Identifier: Apache-2.0

// Joins the features of a batch into one list of keys, for a merged table: checks the tensors, then join_features().
// A merged table holds the rows of several tables that have the same width and options.
//
// A batch of a recommender may have hundreds of features. One lookup of the joined list costs one deduplication and
// one exchange, where a lookup per feature would cost hundreds of each.
//
// Example: feature "user" of table 0 has ids 5 6 with lengths 1 1, feature "items" of table 1 has ids 8 9 5 with
// lengths 2 1. Joined: ids 5 6 8 9 5, tables 0 0 1 1 1, offsets of bags 0 1 2 4 5, num_bags 2 2. The two keys with id
// 5 differ, as they belong to different tables.

#include "feature_joiner.hpp"

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

FeatureJoiner::FeatureJoiner(std::vector<std::string> names, std::vector<std::uint32_t> tables,
                             std::vector<Pooling> poolings, at::Device device)
    : names_(std::move(names)), tables_(std::move(tables)), poolings_(std::move(poolings)), device_(device) {
  base::expects(names_.size() == tables_.size() && names_.size() == poolings_.size(),
                "features need a name, a table and a pooling each");
}

std::vector<Feature> FeatureJoiner::features(std::vector<at::Tensor> const& ids, std::vector<at::Tensor> const& lengths,
                                             std::vector<std::optional<at::Tensor>> const& weights,
                                             std::vector<at::Tensor>& held) const {
  std::size_t const count = names_.size();
  base::expects(ids.size() == count && lengths.size() == count && weights.size() == count,
                "not one tensor of values, lengths and weights for each of " + std::to_string(count) + " features");
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

JoinedTensors FeatureJoiner::join(std::vector<at::Tensor> const& ids, std::vector<at::Tensor> const& lengths,
                                  std::vector<std::optional<at::Tensor>> const& weights) const {
  std::vector<at::Tensor> held;  // Keeps contiguous copies alive until the features are joined.
  auto const features = this->features(ids, lengths, weights, held);
  std::vector<std::int64_t> num_bags;
  for (auto const& feature : features) num_bags.push_back(static_cast<std::int64_t>(feature.num_bags()));
  auto const sizes = sizes_of(features);
  auto const num_ids = static_cast<std::int64_t>(sizes.ids), num_offsets = static_cast<std::int64_t>(sizes.bags) + 1;
  auto out_ids = empty(num_ids, at::kLong, device_), tables = empty(num_ids, at::kInt, device_);
  std::optional<at::Tensor> offsets, out_weights;
  JoinedFeatures out{.ids = span_of<std::uint64_t>(out_ids, at::kLong, device_, "ids"),
                     .tables = span_of<std::uint32_t>(tables, at::kInt, device_, "tables")};
  if (sizes.has_bags) {
    offsets = empty(num_offsets, at::kLong, device_);
    out.offsets = span_of<std::int64_t>(*offsets, at::kLong, device_, "offsets");
  }
  if (sizes.has_weights) {
    out_weights = empty(num_ids, at::kFloat, device_);
    out.weights = span_of<float>(*out_weights, at::kFloat, device_, "weights");
  }
  device_.is_cpu() ? join_features(features, out) : join_features(features, out, place_of(device_));
  return {.keys = {std::move(out_ids), std::move(tables), 0, std::nullopt},
          .offsets = std::move(offsets),
          .weights = std::move(out_weights),
          .num_bags = std::move(num_bags)};
}

Integers FeatureJoiner::integers_of(std::size_t feature, char const* what, at::Tensor& tensor) const {
  bool const is_wide = tensor.scalar_type() == at::kLong;
  if (tensor.dim() != 1 || (!is_wide && tensor.scalar_type() != at::kInt) || tensor.device() != device_) {
    refuse(names_[feature], std::string(what) + " must be int64 or int32 of one dimension on " + name_of(device_) +
                                ", not " + type_and_shape_of(tensor) + " on " + name_of(tensor.device()));
  }
  tensor = tensor.contiguous();
  return {.data = tensor.const_data_ptr(), .size = static_cast<std::size_t>(tensor.numel()), .are_wide = is_wide};
}

std::span<float const> FeatureJoiner::weights_of(std::size_t feature, std::size_t num_ids, at::Tensor& tensor) const {
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
