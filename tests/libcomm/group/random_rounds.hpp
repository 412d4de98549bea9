// SPDX-License-Identifier: Apache-2.0

// Rounds of randomised tests that can be repeated one by one.
//
// Idea: round i of a process draws from a generator with seed first + i. HEADWAY_TEST_SEED sets the first seed; its
// default is 1. A failed check in the thread of the test prints the seed of its round.
//
// Example: a test calls RandomRounds::run(10, round). The first pass of --gtest_repeat=2 uses seeds 1 to 10, the second
// pass seeds 11 to 20. If the round of seed 17 fails, HEADWAY_TEST_SEED=17 with a --gtest_filter for this test makes it
// the first round.
//
// Invariants: the seeds of a process only count up, also over several tests, so no round is repeated by accident.
// Draws depend on the seed alone: std::mt19937_64 is fixed by the standard, and draw() replaces the distributions of
// the standard library, which are not. The seed does not fix the timing of threads or processes.
// Complexity: O(1) per draw.

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

/// Runs the rounds of a randomised test. Each round has a seed of its own: the number after the last round's seed.
class RandomRounds {
 public:
  using Random = std::mt19937_64;

  /// Calls `round` `count` times, even after failures. A failed check shows the seed of its round.
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

/// Draws from [least, most]. Unlike the library's distributions, it gives the same numbers on every host.
inline std::uint64_t draw(RandomRounds::Random& random, std::uint64_t least, std::uint64_t most) {
  return least + random() % (most - least + 1);
}

inline std::chrono::microseconds draw_delay(RandomRounds::Random& random, std::chrono::microseconds least,
                                            std::chrono::microseconds most) {
  return std::chrono::microseconds(
      draw(random, static_cast<std::uint64_t>(least.count()), static_cast<std::uint64_t>(most.count())));
}

}  // namespace headway::comm
