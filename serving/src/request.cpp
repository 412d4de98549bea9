// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/request.hpp"

#include <algorithm>

namespace headway::serving {

namespace {

std::string text(std::size_t number) { return std::to_string(number); }

[[noreturn]] void fail(std::string const& message) { throw RequestError(message); }

/// Adds up lengths. @param name of the tensor
std::size_t sum_of(std::string const& name, std::span<std::int32_t const> lengths) {
  std::size_t sum = 0;
  for (auto const length : lengths) {
    if (length < 0) fail(name + ": a number is negative");
    sum += static_cast<std::size_t>(length);
  }
  return sum;
}

Sizes count(Request const& request, Manifest const& manifest) {
  Sizes sizes;
  if (manifest.has_users()) {
    sizes = {.items = sum_of("items", request.items), .users = request.items.size()};
  } else {
    if (!request.items.empty()) fail("items is given, and the model has no features of users");
    sizes.items = manifest.features.empty() ? 0 : request.features[0].lengths.size();
  }
  for (std::size_t i = 0; i < manifest.features.size(); ++i) {
    if (manifest.features[i].pooling == embedding::Pooling::kNone) {
      sizes.tokens = std::max(sizes.tokens, request.features[i].ids.size());
    }
  }
  return sizes;
}

/// Checks that no user has a sequence and items that are too long together for the model.
void expect_length(std::string const& name, std::span<std::int32_t const> lengths, Request const& request,
                   std::size_t longest) {
  if (longest == SIZE_MAX) return;
  for (std::size_t user = 0; user < lengths.size(); ++user) {
    auto const values = static_cast<std::size_t>(lengths[user]), items = static_cast<std::size_t>(request.items[user]);
    if (values + items <= longest) continue;
    fail(name + ": user " + text(user) + " has " + text(values) + " values and " + text(items) + " items, and " +
         text(longest) + " are allowed together");
  }
}

void expect_lists(Manifest const& manifest, Request const& request, std::size_t index, Sizes const& sizes) {
  auto const& feature = manifest.features[index];
  auto const& lists = request.features[index];
  auto const name = feature.name + ".lengths";
  if (lists.lengths.size() != sizes.of(feature.axis)) {
    fail(name + " has " + text(lists.lengths.size()) + " numbers, and there are " + text(sizes.of(feature.axis)) +
         (feature.axis == Axis::kUser ? " users" : " items"));
  }
  auto const sum = sum_of(name, lists.lengths);
  if (feature.is_single && std::ranges::any_of(lists.lengths, [](auto each) { return each != 1; })) {
    fail(name + ": each list has exactly one id");
  }
  if (sum != lists.ids.size()) {
    fail(name + " add up to " + text(sum) + ", and there are " + text(lists.ids.size()) + " ids");
  }
  if (feature.sequence == ServedFeature::kNoSequence) return;
  auto const first = static_cast<std::size_t>(
      std::ranges::find(manifest.features, feature.sequence, &ServedFeature::sequence) - manifest.features.begin());
  if (!std::ranges::equal(lists.lengths, request.features[first].lengths)) {
    fail(name + " differ from those of " + manifest.features[first].name + ", of the same sequence");
  }
  expect_length(name, lists.lengths, request, manifest.longest);
}

}  // namespace

Sizes sizes_of(Request const& request, Manifest const& manifest) {
  if (request.features.size() != manifest.features.size() || request.dense.size() != manifest.dense_features.size()) {
    fail("the request has " + text(request.features.size()) + " features and " + text(request.dense.size()) +
         " dense features, and the model " + text(manifest.features.size()) + " and " +
         text(manifest.dense_features.size()));
  }
  auto const sizes = count(request, manifest);
  for (std::size_t i = 0; i < manifest.features.size(); ++i) expect_lists(manifest, request, i, sizes);
  for (std::size_t i = 0; i < manifest.dense_features.size(); ++i) {
    auto const& dense = manifest.dense_features[i];
    if (request.dense[i].size() == sizes.of(dense.axis) * dense.width) continue;
    fail(dense.name + " has " + text(request.dense[i].size()) + " numbers, and " + text(sizes.of(dense.axis)) +
         " rows of " + text(dense.width) + " are expected");
  }
  if (sizes.items == 0) fail("the request has no items");
  return sizes;
}

}  // namespace headway::serving
