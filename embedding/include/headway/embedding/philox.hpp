#pragma once

#include <array>
#include <cstdint>

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

}  // namespace headway::embedding
