// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace headway::comm::stress {

/// Word `index` of the payload of `key`.
constexpr std::uint64_t payload_word(std::uint64_t key, std::size_t index) {
  return (key | 1) * (index + 0x9e3779b97f4a7c15u);
}

/// Writes the payload of `key`, which is a hash of sender, receiver and operation.
inline void fill_payload(std::span<std::byte> block, std::uint64_t key) {
  for (std::size_t at = 0; at < block.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t const word = payload_word(key, at / sizeof(std::uint64_t));
    std::memcpy(block.data() + at, &word, std::min(sizeof word, block.size() - at));
  }
}

/// Offset of the first byte of `block` that differs from fill_payload(); none if all are right.
inline std::optional<std::size_t> first_wrong_byte(std::span<std::byte const> block, std::uint64_t key) {
  for (std::size_t at = 0; at < block.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t const word = payload_word(key, at / sizeof(std::uint64_t));
    std::size_t const size = std::min(sizeof word, block.size() - at);
    if (std::memcmp(block.data() + at, &word, size) == 0) continue;
    auto const* expected = reinterpret_cast<std::byte const*>(&word);
    for (std::size_t i = 0; i < size; ++i) {
      if (block[at + i] != expected[i]) return at + i;
    }
  }
  return std::nullopt;
}

}  // namespace headway::comm::stress
