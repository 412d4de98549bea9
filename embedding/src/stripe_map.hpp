#pragma once

#include "headway/embedding/key.hpp"

#include <array>
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
  /// Values of those bits: cells() maps each to its stripe.
  static constexpr std::size_t kNumCells = std::size_t{1} << kHashBits;
  [[nodiscard]] std::array<std::uint8_t, kNumCells> const& cells() const { return of_cell_; }

 private:
  std::array<std::uint8_t, kNumCells> of_cell_;
};

}  // namespace headway::embedding
