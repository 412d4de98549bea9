// SPDX-License-Identifier: Apache-2.0
#include "batch_inputs.hpp"

#include <algorithm>
#include <utility>

namespace headway::serving {

using embedding::Pooling;

BatchInputs::BatchInputs(Manifest const& manifest, MergedTables const& merged, std::size_t part)
    : manifest_(manifest),
      merged_(merged),
      part_(part),
      lists_(manifest.features.size()),
      dense_(manifest.dense_features.size()),
      items_(manifest.has_users() ? bucket().users : 0),
      rows_(merged.dims.size()),
      sequence_lengths_(manifest.sequences.size()) {
  for (std::size_t i = 0; i < lists_.size(); ++i) lists_[i].lengths.resize(bucket().of(manifest.features[i].axis));
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    auto const& dense = manifest.dense_features[i];
    dense_[i].resize(bucket().of(dense.axis) * dense.width);
  }
}

std::size_t BatchInputs::add(Request const& request, Sizes const& sizes) {
  auto const place_of = [&](Axis axis) { return static_cast<std::ptrdiff_t>(sizes_.of(axis)); };
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    auto const& from = request.features[i];
    lists_[i].ids.insert(lists_[i].ids.end(), from.ids.begin(), from.ids.end());
    std::ranges::copy(from.lengths, lists_[i].lengths.begin() + place_of(manifest_.features[i].axis));
  }
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    auto const& dense = manifest_.dense_features[i];
    std::ranges::copy(request.dense[i],
                      dense_[i].begin() + place_of(dense.axis) * static_cast<std::ptrdiff_t>(dense.width));
  }
  std::ranges::copy(request.items, items_.begin() + place_of(Axis::kUser));
  auto const first = sizes_.items;
  sizes_ += sizes;
  return first;
}

std::vector<embedding::Feature> BatchInputs::features() const {
  std::vector<embedding::Feature> features;
  for (auto const index : merged_.feature_of) {
    auto const& feature = manifest_.features[index];
    auto const& lists = lists_[index];
    features.push_back({.name = feature.name,
                        .table = manifest_.tables[feature.table].id,
                        .pooling = feature.pooling,
                        .ids = {lists.ids.data(), lists.ids.size()},
                        .lengths = {lists.lengths.data(), lists.lengths.size(), /*are_wide=*/false}});
  }
  return features;
}

std::vector<InputTensor> BatchInputs::take_rows(RowFetcher::Fetch& fetch) {
  std::vector<std::size_t> num_bags(rows_.size());
  std::vector<std::size_t> first_bag(lists_.size());
  for (auto const index : merged_.feature_of) {
    auto const merged = merged_.merged_of[manifest_.features[index].table];
    bool const is_pooled = manifest_.features[index].pooling != Pooling::kNone;
    first_bag[index] = num_bags[merged];
    num_bags[merged] += is_pooled ? lists_[index].lengths.size() : lists_[index].ids.size();
  }
  for (std::size_t merged = 0; merged < rows_.size(); ++merged) {
    rows_[merged].resize(num_bags[merged] * merged_.dims[merged]);
    fetch.expand(merged, rows_[merged]);
  }
  std::vector<InputTensor> tensors;
  auto const add = [&](auto* data, ElementType type, std::size_t rows, std::size_t columns) {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows)};
    if (columns > 0) shape.push_back(static_cast<std::int64_t>(columns));
    tensors.push_back({.data = data, .type = type, .shape = std::move(shape)});
  };
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    auto const& feature = manifest_.features[i];
    auto const merged = merged_.merged_of[feature.table];
    auto const dim = merged_.dims[merged];
    float* rows = rows_[merged].data() + first_bag[i] * dim;
    if (feature.pooling != Pooling::kNone) {
      add(rows, ElementType::kFloat32, bucket().of(feature.axis), dim);
      continue;
    }
    auto& padded = lists_[i].padded_rows;
    padded.resize(bucket().tokens * dim);
    std::copy_n(rows, lists_[i].ids.size() * dim, padded.begin());
    add(padded.data(), ElementType::kFloat32, bucket().tokens, dim);
  }
  for (std::size_t sequence = 0; sequence < sequence_lengths_.size(); ++sequence) {
    auto const first = static_cast<std::size_t>(
        std::ranges::find(manifest_.features, sequence, &ServedFeature::sequence) - manifest_.features.begin());
    sequence_lengths_[sequence].assign(lists_[first].lengths.begin(), lists_[first].lengths.end());
    add(sequence_lengths_[sequence].data(), ElementType::kInt64, bucket().users, 0);
  }
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    auto const& dense = manifest_.dense_features[i];
    add(dense_[i].data(), ElementType::kFloat32, bucket().of(dense.axis), dense.width);
  }
  if (manifest_.has_users()) add(items_.data(), ElementType::kInt64, bucket().users, 0);
  return tensors;
}

}  // namespace headway::serving
