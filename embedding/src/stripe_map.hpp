// SPDX-License-Identifier: Apache-2.0

// Stripes: the 64 parts of a key index. Each grows by itself, and on the CPU one thread at a time works on it.
//
// Idea: with stripes of equal shares, all would reach their load limit in the same step, and that step would rebuild
// the whole index. With shares proportional to 2^(s/64), stripe s doubles when the table has about N * 2^(-s/64) keys
// for some N: the 64 doublings spread evenly over each doubling of the table.
//
// Example: the last stripe has nearly twice the share of the first. If the last one doubles at 1,000,000 keys, stripe
//  32 doubles near 1,400,000 keys and the first one near 1,980,000.
//
// Source: the shares follow from "share * keys = limit"; see docs/design/cuda_tables.md for measurements.

#pragma once

#include "headway/embedding/key.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Maps a key to one of 64 stripes, by the highest bits of its hash. The share of stripe s is proportional to 2^(s/64),
/// so the indices of the stripes double one after the other, not all at the same time.
class StripeMap {
 public:
  static constexpr std::size_t kCount = 64;
  /// Number of highest hash bits that choose the stripe. All other bits are uniform within each stripe.
  static constexpr int kHashBits = 12;

  StripeMap();
  [[nodiscard]] std::size_t of(Hash hash) const { return of(hash.low); }
  [[nodiscard]] std::size_t of(std::uint64_t low) const { return of_cell_[low >> (64 - kHashBits)]; }
  /// Number of values of those bits (cells).
  static constexpr std::size_t kNumCells = std::size_t{1} << kHashBits;
  /// Stripe of each cell.
  [[nodiscard]] std::array<std::uint8_t, kNumCells> const& cells() const { return of_cell_; }

 private:
  std::array<std::uint8_t, kNumCells> of_cell_;
};

inline StripeMap::StripeMap() {
  for (std::size_t cell = 0; cell < kNumCells; ++cell) {
    // `place` is the middle of the cell in [0, 1). Stripe s ends at 2^((s + 1) / kCount) - 1, so the stripe of a place
    // is the integer part of kCount * log2(1 + place).
    double const place = (static_cast<double>(cell) + 0.5) / kNumCells;
    of_cell_[cell] = static_cast<std::uint8_t>(std::log2(1 + place) * kCount);
  }
}

}  // namespace headway::embedding
