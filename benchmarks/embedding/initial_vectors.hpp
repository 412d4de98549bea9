#pragma once

#include <headway/embedding/initializer.hpp>

#include <cstdint>

namespace headway::benchmarks {

/// What the vectors of all systems are as long as they are measured.
inline embedding::Initializer initial_vectors(std::uint64_t seed) {
  return embedding::Initializer::uniform(-1, 1, seed);
}

}  // namespace headway::benchmarks
