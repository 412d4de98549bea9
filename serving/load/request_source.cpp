// SPDX-License-Identifier: Apache-2.0
#include "request_source.hpp"

#include "request_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace headway::serving {

RequestSource::RequestSource(Manifest const& manifest, RequestLaw law, std::string model_name, std::uint64_t seed)
    : manifest_(manifest),
      law_(std::move(law)),
      model_name_(std::move(model_name)),
      random_(seed),
      zipf_scale_(std::pow(static_cast<double>(law_.num_ids) + 1, 1 - law_.zipf) - 1) {}

// The continuous law with density x^-s on [1, num_ids + 1), by the inverse of its distribution.
std::int64_t RequestSource::draw_id() {
  double const u = std::uniform_real_distribution<double>(0, 1)(random_);
  double const n = static_cast<double>(law_.num_ids);
  double value = u * n;
  if (law_.zipf == 1) {
    value = std::pow(n + 1, u) - 1;
  } else if (law_.zipf > 0) {
    value = std::pow(1 + u * zipf_scale_, 1 / (1 - law_.zipf)) - 1;
  }
  return static_cast<std::int64_t>(std::clamp(value, 0.0, n - 1));
}

inference::ModelInferRequest RequestSource::next() {
  inference::ModelInferRequest request;
  request.set_model_name(model_name_);
  auto const rows = law_.rows[std::uniform_int_distribution<std::size_t>(0, law_.rows.size() - 1)(random_)];
  auto const users = manifest_.has_users() ? std::min(law_.users, rows) : 0;
  if (users > 0) {
    std::vector<std::int32_t> items(users);
    for (std::size_t i = 0; i < users; ++i) {
      items[i] = static_cast<std::int32_t>(rows * (i + 1) / users - rows * i / users);
    }
    add_lengths(request, "items", items);
  }
  std::vector<std::vector<std::int32_t>> sequences(manifest_.sequences.size());
  auto const most_items = users == 0 ? 0 : (rows + users - 1) / users;  // For one user.
  auto const longest = std::min(2 * law_.history, manifest_.longest - std::min(manifest_.longest, most_items));
  for (auto& lengths : sequences) {
    for (std::size_t i = 0; i < users; ++i) {
      lengths.push_back(static_cast<std::int32_t>(std::uniform_int_distribution<std::size_t>(0, longest)(random_)));
    }
  }
  for (auto const& feature : manifest_.features) {
    auto const lists = feature.axis == Axis::kUser ? users : rows;
    auto lengths =
        feature.sequence == ServedFeature::kNoSequence
            ? std::vector<std::int32_t>(lists, feature.is_single ? 1 : static_cast<std::int32_t>(law_.list_length))
            : sequences[feature.sequence];
    std::vector<std::int64_t> ids(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0)));
    for (auto& id : ids) id = draw_id();
    add_ids(request, feature.name, ids);
    if (!feature.is_single) add_lengths(request, feature.name + ".lengths", lengths);
  }
  for (auto const& dense : manifest_.dense_features) {
    auto const count = dense.axis == Axis::kUser ? users : rows;
    std::vector<float> values(count * dense.width);
    for (auto& value : values) value = std::uniform_real_distribution<float>(0, 1)(random_);
    add_dense(request, dense.name, values, dense.width);
  }
  return request;
}

}  // namespace headway::serving
