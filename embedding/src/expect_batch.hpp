// SPDX-License-Identifier: Apache-2.0

// Checks of batches that tables and deduplicators on all devices share. They compare sizes only, so they are safe for
// device memory; count_bags_on_host() also reads offsets.

#pragma once

#include "headway/base/status.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/table.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace headway::embedding {

/// Checks a batch: one `what` for each key, and one table for each key or one for all.
/// @throws base::UsageError otherwise
inline void expect_one_each(Keys const& keys, std::size_t count, char const* what) {
  if (count == keys.size() && (keys.tables.empty() || keys.tables.size() == keys.size())) return;
  throw base::UsageError(std::to_string(keys.size()) + " keys have " + std::to_string(count) + " " + what + " and " +
                         std::to_string(keys.tables.size()) + " tables");
}

/// Checks that there are `width` values for each key. @throws base::UsageError otherwise
inline void expect_values(Keys const& keys, std::size_t num_values, std::size_t width, char const* what) {
  if (num_values == keys.size() * width) return;
  throw base::UsageError(std::string(what) + ": " + std::to_string(num_values) + " values for " +
                         std::to_string(keys.size()) + " keys of " + std::to_string(width));
}

/// Number of keys of the batch that `csr` maps to the unique keys `keys`.
/// @throws base::UsageError if sizes do not agree
inline std::size_t expect_csr(Keys const& keys, CsrMap const& csr) {
  base::expects(
      csr.inverse_indices.size() == csr.csr_indices.size() && csr.csr_offsets.size() > keys.size(),
      "not one inverse index and one CSR index for each key of the batch, and one CSR offset for each unique key");
  return csr.inverse_indices.size();
}

/// Number of bags of a batch of `num_keys` keys. @throws base::UsageError if sizes do not agree
inline std::size_t count_bags(std::size_t num_keys, Bags const& bags) {
  base::expects(bags.weights.empty() || bags.weights.size() == num_keys, "not one weight for each key");
  return bags.offsets.empty() ? num_keys : bags.offsets.size() - 1;
}

/// count_bags() for offsets in host memory, which are checked too.
/// @throws base::UsageError unless offsets grow from 0 to `num_keys`
inline std::size_t count_bags_on_host(std::size_t num_keys, Bags const& bags) {
  bool const are_good = bags.offsets.empty() ||
                        (bags.offsets.front() == 0 && bags.offsets.back() == static_cast<std::int64_t>(num_keys) &&
                         std::ranges::is_sorted(bags.offsets));
  if (!are_good) {
    throw base::UsageError("offsets of bags must grow from 0 to the " + std::to_string(num_keys) + " keys");
  }
  return count_bags(num_keys, bags);
}

/// Sizes of the joined features. @throws base::UsageError unless `out` has them, and weights are empty or one per id
JoinedSizes expect_room(std::span<Feature const> features, JoinedFeatures const& out);

}  // namespace headway::embedding
