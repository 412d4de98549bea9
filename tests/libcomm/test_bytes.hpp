// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// `size` pseudo-random bytes that differ between seeds.
inline std::vector<std::byte> test_bytes(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t at = 0; at < size; at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof state, size - at));
  }
  return bytes;
}

// Uses memcmp(), which sanitizers check as a whole. An instrumented loop over megabytes takes seconds.
inline bool same_bytes(std::span<std::byte const> left, std::span<std::byte const> right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

inline bool all_zero(std::span<std::byte const> bytes) {
  return bytes.empty() ||
         (bytes.front() == std::byte{0} && same_bytes(bytes.first(bytes.size() - 1), bytes.subspan(1)));
}

}  // namespace headway::comm
