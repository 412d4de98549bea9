// SPDX-License-Identifier: Apache-2.0

// Concatenates the jagged features of a batch in host memory (features.hpp); join_features.cu does so on the GPU.
//
// Example: feature "user" (table 0, no pooling, ids 7 9, lengths 1 1), feature "tags" (table 1, mean, ids 4 5 6,
//  lengths 2 1). Joined ids 7 9 4 5 6, tables 0 0 1 1 1, offsets 0 1 2 4 5, weights 1 1 1/2 1/2 1.
//  The two ids without pooling are bags of one id each. A mean is a sum whose weights are divided by the list's length.
//
// Invariants: all lengths are checked before anything is written, so a bad feature leaves `out` as it was.

#include "headway/embedding/features.hpp"

#include "expect_batch.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace headway::embedding {

namespace {

void expect_fitting(Feature const& feature) {
  // Counts down the ids that remain: a sum of lengths could overflow and then equal the number of ids.
  auto left = static_cast<std::int64_t>(feature.ids.size);
  bool is_good = true;
  for (std::size_t i = 0; i < feature.lengths.size && is_good; ++i) {
    is_good = feature.lengths[i] >= 0 && feature.lengths[i] <= left;
    left -= is_good ? feature.lengths[i] : 0;
  }
  if (is_good && left == 0) return;
  throw base::UsageError("feature " + std::string(feature.name) + ": lengths must be from 0 and add up to " +
                         std::to_string(feature.ids.size) + ", the number of values");
}

void copy_ids(Integers const& ids, std::uint64_t* out) {
  if (ids.are_wide) {
    if (ids.size > 0) std::memcpy(out, ids.data, ids.size * sizeof(*out));
    return;
  }
  for (std::size_t i = 0; i < ids.size; ++i) out[i] = static_cast<std::uint64_t>(ids[i]);
}

/// Writes one weight per id; for a mean, each is divided by the length of its list. Lengths must have been checked.
void write_weights(Feature const& feature, float* out) {
  if (feature.weights.empty()) {
    std::fill_n(out, feature.ids.size, 1.0F);
  } else {
    std::ranges::copy(feature.weights, out);
  }
  if (feature.pooling != Pooling::kMean) return;
  for (std::size_t list = 0; list < feature.lengths.size; ++list) {
    auto const length = feature.lengths[list];
    for (std::int64_t i = 0; i < length; ++i) *out++ *= 1 / static_cast<float>(length);
  }
}

}  // namespace

JoinedSizes sizes_of(std::span<Feature const> features) {
  JoinedSizes sizes;
  for (auto const& feature : features) {
    sizes.ids += feature.ids.size;
    sizes.lists += feature.lengths.size;
    sizes.bags += feature.num_bags();
    sizes.has_bags |= feature.pooling != Pooling::kNone;
    sizes.has_weights |= feature.pooling == Pooling::kMean || !feature.weights.empty();
  }
  return sizes;
}

JoinedSizes expect_room(std::span<Feature const> features, JoinedFeatures const& out) {
  auto const sizes = sizes_of(features);
  base::expects(out.ids.size() == sizes.ids && out.tables.size() == sizes.ids &&
                    out.offsets.size() == (sizes.has_bags ? sizes.bags + 1 : 0) &&
                    out.weights.size() == (sizes.has_weights ? sizes.ids : 0),
                "joined features take other sizes than what is given for them");
  for (auto const& feature : features) {
    if (feature.weights.empty() || feature.weights.size() == feature.ids.size) continue;
    throw base::UsageError("feature " + std::string(feature.name) + ": " + std::to_string(feature.weights.size()) +
                           " weights for " + std::to_string(feature.ids.size) + " values");
  }
  return sizes;
}

void join_features(std::span<Feature const> features, JoinedFeatures const& out) {
  expect_room(features, out);
  for (auto const& feature : features) expect_fitting(feature);
  std::size_t id = 0, bag = 0;
  std::int64_t end_of_bag = 0;
  if (!out.offsets.empty()) out.offsets[0] = 0;
  for (auto const& feature : features) {
    copy_ids(feature.ids, out.ids.data() + id);
    std::fill_n(out.tables.data() + id, feature.ids.size, feature.table);
    if (!out.weights.empty()) write_weights(feature, out.weights.data() + id);
    id += feature.ids.size;
    if (out.offsets.empty()) continue;
    for (std::size_t i = 0; i < feature.num_bags(); ++i) {
      end_of_bag += feature.pooling == Pooling::kNone ? 1 : feature.lengths[i];
      out.offsets[++bag] = end_of_bag;
    }
  }
}

}  // namespace headway::embedding
