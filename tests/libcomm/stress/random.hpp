// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headway::comm::stress {

/// Mixes 64 bits; a bijection (finaliser of splitmix64).
constexpr std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

/// Hash of all `parts`.
template <typename... Parts>
constexpr std::uint64_t hash_of(Parts... parts) {
  std::uint64_t hash = 0;
  ((hash = mixed(hash + 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(parts))), ...);
  return hash;
}

/// Small generator with the same draws on every compiler and library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return mixed(state_ += 0x9e3779b97f4a7c15u); }
  /// Draws from 0 to bound - 1.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace headway::comm::stress
