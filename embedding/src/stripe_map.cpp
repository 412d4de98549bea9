#include "stripe_map.hpp"

#include <cmath>

namespace headway::embedding {

StripeMap::StripeMap() {
  for (std::size_t cell = 0; cell < kNumCells; ++cell) {
    // Stripe s ends where 2^((s + 1) / kCount) - 1 of all cells do, which is where the logarithm passes it.
    double const place = (static_cast<double>(cell) + 0.5) / kNumCells;
    of_cell_[cell] = static_cast<std::uint8_t>(std::log2(1 + place) * kCount);
  }
}

}  // namespace headway::embedding
