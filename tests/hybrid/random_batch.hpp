// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/features.hpp"
#include "headway/hybrid/embedding_client.hpp"
#include "server_fixture.hpp"

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::hybrid {

/// Two merged tables: ids 1 and 2 with 4 columns, and 3 with 2 columns.
inline std::vector<embedding::MergedTable> two_tables() {
  std::vector<embedding::MergedTable> tables(2);
  for (auto& table : tables) {
    table.options.initializer = embedding::Initializer::uniform(-1, 1, 5);
    table.options.optimizer.kind = kernels::OptimizerKind::kAdagrad;
  }
  tables[0].options.dim = 4;
  tables[0].tables = {1, 2};
  tables[1].options.dim = 2;
  tables[1].tables = {3};
  return tables;
}

inline constexpr std::array<char const*, 3> kNames{"a", "b", "c"};

/// Features of a random batch: "a" and "b" of the first merged table, pooled, and "c" without pooling.
struct RandomBatch {
  explicit RandomBatch(unsigned seed) {
    std::mt19937 random(seed);
    for (std::size_t feature = 0; feature < 3; ++feature) {
      for (int list = 0; list < 6; ++list) {
        lengths[feature].push_back(random() % 4);
        for (std::int64_t i = 0; i < lengths[feature].back(); ++i) ids[feature].push_back(random() % 25);
      }
      features.push_back({.name = kNames[feature],
                          .table = static_cast<std::uint32_t>(feature + 1),
                          .pooling = feature == 0   ? embedding::Pooling::kSum
                                     : feature == 1 ? embedding::Pooling::kMean
                                                    : embedding::Pooling::kNone,
                          .ids = {ids[feature].data(), ids[feature].size()},
                          .lengths = {lengths[feature].data(), lengths[feature].size()}});
    }
  }
  RandomBatch(RandomBatch const&) = delete;
  RandomBatch& operator=(RandomBatch const&) = delete;

  std::array<std::vector<std::int64_t>, 3> ids, lengths;
  std::vector<embedding::Feature> features;
};

inline std::vector<float> gradients_of(std::span<float const> embeddings) {
  std::vector<float> gradients;
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    gradients.push_back(0.5F * embeddings[i] + static_cast<float>(i % 5) - 2);
  }
  return gradients;
}

/// Clients of all servers, with their names.
inline std::vector<ServerEnd> ends_of(Servers& servers) {
  std::vector<ServerEnd> ends;
  for (auto& client : servers.connect()) {
    ends.push_back({.name = "server " + std::to_string(ends.size()), .client = std::move(client)});
  }
  return ends;
}

}  // namespace headway::hybrid
