#include "stripe_map.hpp"

#include <cmath>

namespace headway::embedding {

StripeMap::StripeMap() {
  for (std::size_t cell = 0; cell < kNumCells; ++cell) {
    // `place` is the middle of the cell in [0, 1). Stripe s ends at 2^((s + 1) / kCount) - 1, so the stripe of a place
    // is the integer part of kCount * log2(1 + place).
    double const place = (static_cast<double>(cell) + 0.5) / kNumCells;
    of_cell_[cell] = static_cast<std::uint8_t>(std::log2(1 + place) * kCount);
  }
}

}  // namespace headway::embedding
