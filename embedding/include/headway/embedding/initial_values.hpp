// SPDX-License-Identifier: Apache-2.0

// Initial embeddings as a pure function of (seed, table, id, column).
//
// A row is made when its key is first looked up. Its values must not depend on when that happens, on which rank, or
// in which order. So a counter-based generator replaces a stream of random numbers: columns 4 * b to 4 * b + 3 of a key
// are philox({id, table, b}, seed). A lookup of a key without a row can thus compute what the row would hold.

#pragma once

#include "headway/embedding/key.hpp"
#include "headway/kernels/host_device.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace headway::embedding {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Stateless: four random words
/// that depend on `counter` and `seed` alone, so any thread of any device can make them.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t seed) {
  constexpr std::uint64_t kFirst = 0xd2511f53, kSecond = 0xcd9e8d57;
  constexpr std::uint32_t kFirstWeyl = 0x9e3779b9, kSecondWeyl = 0xbb67ae85;
  constexpr int kRounds = 10;
  auto first_key = static_cast<std::uint32_t>(seed), second_key = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    std::uint64_t const first = kFirst * counter[0], second = kSecond * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ first_key, static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ second_key, static_cast<std::uint32_t>(first)};
    first_key += kFirstWeyl;
    second_key += kSecondWeyl;
  }
  return counter;
}

/// Parameters and formula of an Initializer, usable in kernels.
struct InitialValues {
  enum class Law : std::uint8_t { kConstant, kUniform, kNormal };
  static constexpr std::size_t kAtOnce = 4;  ///< Values per call of philox().

  Law law = Law::kConstant;
  float base = 0, width = 0;  ///< kConstant: value; kUniform: lowest value, range; kNormal: mean, standard deviation.
  std::uint64_t seed = 0;

  /// Initial values of columns 4 * `block` to 4 * `block` + 3.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::array<float, kAtOnce> of(Key key, std::uint32_t block) const {
    if (law == Law::kConstant) return {base, base, base, base};
    auto const words =
        philox({static_cast<std::uint32_t>(key.id), static_cast<std::uint32_t>(key.id >> 32), key.table, block}, seed);
    return law == Law::kUniform ? uniform_of(words) : normal_of(words);
  }

 private:
  using Words = std::array<std::uint32_t, kAtOnce>;

  [[nodiscard]] HEADWAY_HOST_DEVICE std::array<float, kAtOnce> uniform_of(Words const& words) const {
    std::array<float, kAtOnce> values{};
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      // The product of two 24-bit mantissas is exact in double, so a fused multiply-add gives the same bits.
      double const share = static_cast<double>(words[i] >> 8) * 0x1p-24;
      values[i] = static_cast<float>(share * width + base);
    }
    return values;
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE std::array<float, kAtOnce> normal_of(Words const& words) const {
    std::array<float, kAtOnce> values{};
    for (std::size_t i = 0; i < kAtOnce; i += 2) {
      double const radius = std::sqrt(-2 * std::log((static_cast<double>(words[i]) + 0.5) * 0x1p-32));
      double const angle = 2 * std::numbers::pi * static_cast<double>(words[i + 1]) * 0x1p-32;
      values[i] = static_cast<float>(radius * std::cos(angle) * width + base);
      values[i + 1] = static_cast<float>(radius * std::sin(angle) * width + base);
    }
    return values;
  }
};

}  // namespace headway::embedding
