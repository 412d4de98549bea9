// SPDX-License-Identifier: Apache-2.0

// Walks over the copies of a jagged item (the rows of one feature in one sample): the loop behind sum_copies() on both
// devices.
//
// Example: F = 2 features and B = 3 samples, item 4 is (feature 1, sample 1). Feature 1 was copied to features 0 and
// 2, sample 1 to sample 5 of B' = 6. The copies of item 4 are items 0 * 6 + 5 = 5 and 2 * 6 + 5 = 17, in this order.

#pragma once

#include "headway/kernels/jagged_sums.hpp"

#include <cstdint>

namespace headway::kernels {

/// Range of indices into ListCopies::csr_indices that belong to an entry; copy_at() gives the copy at each of them.
/// Without a map, an entry has one copy, with its own index.
HEADWAY_HOST_DEVICE inline Range copies_of(ListCopies const& list, std::int64_t entry) {
  if (list.csr_offsets == nullptr) return {entry, entry + 1};
  return {list.csr_offsets[entry], list.csr_offsets[entry + 1]};
}
/// Copy at an index of copies_of(): the feature or sample to which the entry was copied.
HEADWAY_HOST_DEVICE inline std::int64_t copy_at(ListCopies const& list, std::int64_t index) {
  return list.csr_indices == nullptr ? index : list.csr_indices[index];
}

/// Calls `visit(copy)` with the number of each item that is a copy of `item`.
template <class Visit>
HEADWAY_HOST_DEVICE void for_each_copy(CopiedItems const& items, std::int64_t item, Visit const& visit) {
  Range const features = copies_of(items.features, item / items.num_samples);
  Range const samples = copies_of(items.samples, item % items.num_samples);
  for (std::int64_t i = features.begin; i < features.end; ++i) {
    std::int64_t const first = copy_at(items.features, i) * items.num_copied_samples;
    for (std::int64_t j = samples.begin; j < samples.end; ++j) visit(first + copy_at(items.samples, j));
  }
}

}  // namespace headway::kernels
