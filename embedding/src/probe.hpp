#pragma once

#include "headway/embedding/key.hpp"

#include <cstddef>

namespace headway::embedding {

/// Grouped probing (MTGRBoost, equation 5), in units of buckets. Each key has its own step. The step is odd, so a probe
/// visits all 2^n buckets (theorem 1).
struct OddStepProbe {
  static constexpr std::size_t step(Hash hash, std::size_t mask) { return (hash.high & mask) | 1; }
};

/// Linear probing: the next bucket, for every key.
struct LinearProbe {
  static constexpr std::size_t step(Hash /*hash*/, std::size_t /*mask*/) { return 1; }
};

}  // namespace headway::embedding
