// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/dense_model.hpp"
#include "headway/serving/package.hpp"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::serving {

/// Ends the process unless a statement about this code holds, so that a fuzzer notices.
inline void require(bool holds, std::string const& statement) {
  if (holds) return;
  std::fprintf(stderr, "this does not hold: %s\n", statement.c_str());
  std::abort();
}

/// A dense part for any manifest. The value of an item is the sum of its rows, of those of its user, and of the rows of
/// its user's sequences. Output i of a model has i + 1 columns, all of them this value.
///
/// It reads each element of each input, so a sanitizer finds an input that is shorter than its shape.
class RowSumModel : public DenseModel {
 public:
  explicit RowSumModel(Manifest manifest) : manifest_(std::move(manifest)) {}

  [[nodiscard]] std::vector<OutputRows> run(std::size_t part, std::span<InputTensor const> inputs) override {
    auto const& bucket = manifest_.parts[part].bucket;
    std::vector<float> of_items(bucket.items), of_users(bucket.users);
    std::size_t next = 0;
    auto const num_features = manifest_.features.size();
    for (auto const& feature : manifest_.features) {
      auto const& input = inputs[next++];
      auto const dim = manifest_.tables[feature.table].dim;
      if (feature.pooling != embedding::Pooling::kNone) {
        add_rows(input, dim, feature.axis == Axis::kUser ? of_users : of_items);
        continue;
      }
      std::vector<float> of_tokens(bucket.tokens);
      add_rows(input, dim, of_tokens);
      auto const lengths = counts(inputs[num_features + feature.sequence], bucket.users);
      std::size_t token = 0;
      for (std::size_t user = 0; user < bucket.users; ++user) {
        for (std::int64_t i = 0; i < lengths[user]; ++i) of_users[user] += of_tokens.at(token++);
      }
    }
    next += manifest_.sequences.size();
    for (auto const& dense : manifest_.dense_features) {
      add_rows(inputs[next++], dense.width, dense.axis == Axis::kUser ? of_users : of_items);
    }
    if (manifest_.has_users()) {
      auto const items = counts(inputs[next++], bucket.users);
      std::size_t item = 0;
      for (std::size_t user = 0; user < bucket.users; ++user) {
        for (std::int64_t i = 0; i < items[user]; ++i) of_items.at(item++) += of_users[user];
      }
    }
    require(next == inputs.size(), "the dense part gets an input for each part of the manifest");
    return outputs_of(of_items);
  }

 private:
  /// Adds to each sum the columns of its row.
  static void add_rows(InputTensor const& input, std::size_t width, std::vector<float>& sums) {
    std::vector<std::int64_t> const shape{static_cast<std::int64_t>(sums.size()), static_cast<std::int64_t>(width)};
    require(input.type == ElementType::kFloat32 && input.shape == shape, "rows have the shape of their bucket");
    auto const* row = static_cast<float const*>(input.data);
    for (float& sum : sums) {
      sum = std::accumulate(row, row + width, sum);
      row += width;
    }
  }
  static std::span<std::int64_t const> counts(InputTensor const& input, std::size_t size) {
    std::vector<std::int64_t> const shape{static_cast<std::int64_t>(size)};
    require(input.type == ElementType::kInt64 && input.shape == shape, "there is a number for each user");
    return {static_cast<std::int64_t const*>(input.data), size};
  }
  [[nodiscard]] std::vector<OutputRows> outputs_of(std::vector<float> const& of_items) const {
    std::vector<OutputRows> outputs;
    for (std::size_t i = 0; i < manifest_.outputs.size(); ++i) {
      auto& output = outputs.emplace_back();
      if (i > 0) output.row_shape = {static_cast<std::int64_t>(i + 1)};
      for (auto const value : of_items) output.values.insert(output.values.end(), i + 1, value);
    }
    return outputs;
  }

  Manifest manifest_;
};

}  // namespace headway::serving
