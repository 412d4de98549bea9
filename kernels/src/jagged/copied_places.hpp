#pragma once

#include "headway/kernels/jagged_sums.hpp"

#include <cstdint>

namespace headway::kernels {

/// Range of indices into the copies of an entry; place_at() maps each index to a place.
HEADWAY_HOST_DEVICE inline Range places_of(ListCopies const& list, std::int64_t entry) {
  if (list.offsets == nullptr) return {entry, entry + 1};
  return {list.offsets[entry], list.offsets[entry + 1]};
}
/// Place of copy number `i`.
HEADWAY_HOST_DEVICE inline std::int64_t place_at(ListCopies const& list, std::int64_t i) {
  return list.members == nullptr ? i : list.members[i];
}

/// Calls `visit(copy)` with the number of each item that is a copy of `item`.
template <class Visit>
HEADWAY_HOST_DEVICE void for_each_copy(CopiedItems const& items, std::int64_t item, Visit const& visit) {
  Range const features = places_of(items.features, item / items.num_samples);
  Range const samples = places_of(items.samples, item % items.num_samples);
  for (std::int64_t i = features.begin; i < features.end; ++i) {
    std::int64_t const first = place_at(items.features, i) * items.num_copied_samples;
    for (std::int64_t j = samples.begin; j < samples.end; ++j) visit(first + place_at(items.samples, j));
  }
}

}  // namespace headway::kernels
