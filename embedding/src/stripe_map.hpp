#pragma once

#include "headway/embedding/key.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Which of 64 stripes a key belongs to, by the highest bits of its hash. Stripe s has a share of 2^(s/64) of the keys,
/// so that tables of one stripe each double at different times, one after the other.
class StripeMap {
 public:
  static constexpr std::size_t kCount = 64;
  /// So many bits of the hash choose the stripe; all further ones are alike in all stripes.
  static constexpr int kHashBits = 12;

  StripeMap();
  [[nodiscard]] std::size_t of(Hash hash) const { return of(hash.low); }
  [[nodiscard]] std::size_t of(std::uint64_t low) const { return of_cell_[low >> (64 - kHashBits)]; }
  /// By those bits.
  static constexpr std::size_t kNumCells = std::size_t{1} << kHashBits;
  [[nodiscard]] std::array<std::uint8_t, kNumCells> const& cells() const { return of_cell_; }

 private:
  std::array<std::uint8_t, kNumCells> of_cell_;
};

}  // namespace headway::embedding
