// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/served_model.hpp"

#include "headway/embedding/key.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

namespace headway::serving {

namespace {

auto cost_of(Sizes const& bucket) {
  return std::tuple(bucket.items + bucket.tokens, bucket.items, bucket.users, bucket.tokens);
}

/// Inputs of a batch whose first users and items are the same in every bucket. The rest is padding.
class TrialBatch {
 public:
  /// @param sizes that all buckets hold
  TrialBatch(Manifest const& manifest, MergedTables const& merged, Sizes const& sizes, Sizes const& bucket) {
    for (auto const& feature : manifest.features) {
      bool const is_pooled = feature.pooling != embedding::Pooling::kNone;
      add_rows(is_pooled ? sizes.of(feature.axis) : sizes.tokens, is_pooled ? bucket.of(feature.axis) : bucket.tokens,
               merged.dims[merged.merged_of[feature.table]]);
    }
    for (std::size_t i = 0; i < manifest.sequences.size(); ++i) add_counts(sizes.tokens, sizes.users, bucket.users);
    for (auto const& dense : manifest.dense_features) {
      add_rows(sizes.of(dense.axis), bucket.of(dense.axis), dense.width);
    }
    if (manifest.has_users()) add_counts(sizes.items, sizes.users, bucket.users);
  }

  [[nodiscard]] std::vector<InputTensor> tensors() {
    std::vector<InputTensor> tensors;
    auto rows = rows_.begin();
    auto counts = counts_.begin();
    for (auto const& shape : shapes_) {
      bool const is_rows = shape.size() == 2;
      tensors.push_back({.data = is_rows ? static_cast<void*>((rows++)->data()) : (counts++)->data(),
                         .type = is_rows ? ElementType::kFloat32 : ElementType::kInt64,
                         .shape = shape});
    }
    return tensors;
  }

 private:
  /// Values in [-1, 1) that depend on their position alone.
  void add_rows(std::size_t count, std::size_t size, std::size_t width) {
    auto& rows = rows_.emplace_back(size * width);
    auto const input = static_cast<std::uint32_t>(shapes_.size());
    for (std::size_t i = 0; i < count * width; ++i) {
      auto const bits = embedding::hash_of({.id = i, .table = input}).high >> 40;
      rows[i] = static_cast<float>(bits) * 0x1p-23F - 1;
    }
    shapes_.push_back({static_cast<std::int64_t>(size), static_cast<std::int64_t>(width)});
  }
  /// `total` spread over `count` users.
  void add_counts(std::size_t total, std::size_t count, std::size_t size) {
    auto& counts = counts_.emplace_back(size);
    for (std::size_t i = 0; i < count; ++i) {
      counts[i] = static_cast<std::int64_t>(total * (i + 1) / count - total * i / count);
    }
    shapes_.push_back({static_cast<std::int64_t>(size)});
  }

  std::vector<std::vector<float>> rows_;
  std::vector<std::vector<std::int64_t>> counts_;
  std::vector<std::vector<std::int64_t>> shapes_;
};

/// Do the outputs of the first `num_items` items have the same bits?
bool are_equal(std::vector<OutputRows> const& some, std::vector<OutputRows> const& others, std::size_t num_items) {
  for (std::size_t i = 0; i < some.size(); ++i) {
    auto const& shape = some[i].row_shape;
    auto const width =
        static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
    if (shape != others[i].row_shape) return false;
    if (std::memcmp(some[i].values.data(), others[i].values.data(), num_items * width * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

ServedModel::ServedModel(Manifest manifest, std::shared_ptr<DenseModel> dense)
    : manifest_(std::move(manifest)), merged_(merge_tables(manifest_)), dense_(std::move(dense)) {
  std::vector<std::size_t> by_size(manifest_.parts.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::ranges::sort(by_size, {}, [&](std::size_t part) { return cost_of(manifest_.parts[part].bucket); });
  Sizes common = manifest_.parts[by_size[0]].bucket;
  for (auto const& part : manifest_.parts) {
    common.items = std::min(common.items, part.bucket.items);
    common.users = std::min(common.users, part.bucket.users);
    common.tokens = std::min(common.tokens, part.bucket.tokens);
  }
  if (manifest_.longest != SIZE_MAX && common.users > 0) {  // Each user has at most half of it of each.
    common.items = std::min(common.items, common.users * std::max<std::size_t>(1, manifest_.longest / 2));
    common.tokens = std::min(common.tokens, common.users * (manifest_.longest / 2));
  }
  std::vector<std::vector<OutputRows>> outputs;
  for (auto const part : by_size) {
    auto const& each = manifest_.parts[part];
    TrialBatch batch(manifest_, merged_, common, each.bucket);
    try {
      outputs.push_back(dense_->run(part, batch.tensors()));
    } catch (std::exception const& error) {
      throw PackageError(each.file + " cannot be run: " + error.what());
    }
    if (outputs.back().size() != manifest_.outputs.size()) {
      throw PackageError(each.file + " has " + std::to_string(outputs.back().size()) + " outputs, and the manifest " +
                         std::to_string(manifest_.outputs.size()));
    }
  }
  for (std::size_t i = 0; i < by_size.size(); ++i) {
    if (are_equal(outputs[i], outputs.back(), common.items)) parts_.push_back(by_size[i]);
  }
}

std::size_t ServedModel::part_for(Sizes const& sizes) const {
  for (auto const part : parts_) {
    if (manifest_.parts[part].bucket.holds(sizes)) return part;
  }
  return parts_.back();
}

}  // namespace headway::serving
