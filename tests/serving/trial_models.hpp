// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_fixture.hpp"

namespace headway::serving {

/// A model with users, sequences and a limit of their length: small_manifest() with two buckets and outputs.
inline Manifest model_with_users() {
  auto manifest = small_manifest({{.items = 8, .users = 2, .tokens = 16}, {.items = 32, .users = 8, .tokens = 64}});
  manifest.features.push_back(
      {.name = "about", .table = 2, .axis = Axis::kUser, .pooling = embedding::Pooling::kNone, .sequence = 0});
  manifest.features.push_back(
      {.name = "visits", .table = 0, .axis = Axis::kUser, .pooling = embedding::Pooling::kNone, .sequence = 1});
  manifest.sequences.emplace_back("visits");
  manifest.dense_features.push_back({.name = "age", .width = 2, .axis = Axis::kUser});
  manifest.longest = 24;
  manifest.outputs.emplace_back("pair");
  return manifest;
}

/// A model without users, whose dense feature has three columns.
inline Manifest model_of_items() {
  auto manifest = small_manifest({{.items = 32}});
  manifest.features = {{.name = "item", .table = 1}, {.name = "topic", .table = 2, .is_single = true}};
  manifest.sequences.clear();
  manifest.dense_features = {{.name = "price", .width = 3}};
  return manifest;
}

}  // namespace headway::serving
