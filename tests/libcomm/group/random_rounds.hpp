#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>

namespace headway::comm {

/// Rounds of a test that draws what it does. Each has a seed of its own: the next number after the last round's, so
/// that --gtest_repeat goes on and does not do the same again. HEADWAY_TEST_SEED is the first of a run (default: 1).
class RandomRounds {
 public:
  using Random = std::mt19937_64;

  /// Runs `round` `count` times, failures or not, and tells which seeds failed.
  static void run(int count, std::function<void(Random&)> const& round) {
    for (int i = 0; i < count; ++i) {
      std::uint64_t const seed = next_seed()++;
      testing::ScopedTrace const trace(__FILE__, __LINE__, "HEADWAY_TEST_SEED=" + std::to_string(seed));
      Random random(seed);
      round(random);
    }
    std::cout << "seeds to " << next_seed() - 1 << std::endl;
  }

 private:
  static std::uint64_t& next_seed() {
    static std::uint64_t seed = [] {
      char const* const given = std::getenv("HEADWAY_TEST_SEED");
      return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
    }();
    return seed;
  }
};

/// From `least` to `most`. The same on every host, as the distributions of the library are not.
inline std::uint64_t draw(RandomRounds::Random& random, std::uint64_t least, std::uint64_t most) {
  return least + random() % (most - least + 1);
}

inline std::chrono::microseconds draw_delay(RandomRounds::Random& random, std::chrono::microseconds least,
                                            std::chrono::microseconds most) {
  return std::chrono::microseconds(
      draw(random, static_cast<std::uint64_t>(least.count()), static_cast<std::uint64_t>(most.count())));
}

}  // namespace headway::comm
