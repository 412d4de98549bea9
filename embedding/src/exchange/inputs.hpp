// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/features.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace headway::embedding {

/// The features of a merged table (tables of equal options that share storage), one after the other.
struct Inputs {
  Block<std::uint64_t> ids;       ///< (K)
  Block<std::uint32_t> tables;    ///< (K)
  Block<std::int64_t> offsets;    ///< (bags + 1), or empty if each id is a bag.
  Block<float> weights;           ///< (K), or empty if all are 1.
  std::vector<bool> are_means{};  ///< (bags), or empty if no feature has kMean.
  std::size_t num_bags = 0;

  [[nodiscard]] Keys keys() const { return {.ids = ids.span, .tables = tables.span}; }
  [[nodiscard]] Bags bags() const { return {.offsets = offsets.span, .weights = weights.span}; }
};

/// Copies features, which may be freed afterwards.
/// @throws base::UsageError if lengths do not add up to the ids
[[nodiscard]] Inputs join(BatchDevice& device, std::span<Feature const> features);

/// Copies features by their merged table.
/// @param merged_of merged table of each table id
/// @returns (num_merged) the features of each merged table, in their order
/// @throws base::UsageError as join(), or if a feature names a table that is not there
[[nodiscard]] std::vector<Inputs> join_by_table(BatchDevice& device, std::span<Feature const> features,
                                                std::map<std::uint32_t, std::size_t> const& merged_of,
                                                std::size_t num_merged);

}  // namespace headway::embedding
