// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stripe_map.hpp"

#include <array>
#include <cstddef>
#include <mutex>

namespace headway::embedding {

/// Locks of the stripes of a table, one for two adjacent stripes: so a batch of some thousand keys has a hundred keys
/// under one lock, whose cache misses overlap. Cells are cache lines, since threads lock neighbours.
class StripeLocks {
 public:
  static constexpr std::size_t kStripes = 2;  ///< Stripes under one lock.
  static constexpr std::size_t kCount = StripeMap::kCount / kStripes;

  [[nodiscard]] std::mutex& operator[](std::size_t lock) { return cells_[lock].mutex; }

 private:
  struct alignas(64) Cell {
    std::mutex mutex;
  };
  std::array<Cell, kCount> cells_;
};

}  // namespace headway::embedding
