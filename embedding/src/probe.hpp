#pragma once

#include "headway/embedding/key.hpp"

#include <cstddef>

namespace headway::embedding {

/// Grouped probing (MTGRBoost, equation 5, in units of buckets): a step of the key's own, odd, so that it comes to all
/// of 2^n buckets (theorem 1).
struct OddStepProbe {
  static constexpr std::size_t step(Hash hash, std::size_t mask) { return (hash.high & mask) | 1; }
};

/// To the next bucket, whatever the key.
struct LinearProbe {
  static constexpr std::size_t step(Hash /*hash*/, std::size_t /*mask*/) { return 1; }
};

}  // namespace headway::embedding
