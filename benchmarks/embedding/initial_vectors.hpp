#pragma once

#include <headway/embedding/initializer.hpp>

#include <cstdint>

namespace headway::benchmarks {

/// Initial vectors of the ids in all systems. No measured operation changes them.
inline embedding::Initializer initial_vectors(std::uint64_t seed) {
  return embedding::Initializer::uniform(-1, 1, seed);
}

}  // namespace headway::benchmarks
