// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headway::comm {

/// Tag that a put makes visible at its destination. It has 32 bits, so it fits the immediate value of an RDMA write.
/// Fewer than 2^16 operations and fewer than 256 fragments are in flight per channel, so a tag of one source names one
/// fragment.
struct Tag {
  std::uint8_t channel = 0;     ///< Scoped to one group's connection.
  std::uint16_t operation = 0;  ///< Operation number modulo 2^16.
  std::uint8_t fragment = 0;    ///< Fragment number modulo 256.

  [[nodiscard]] constexpr std::uint32_t packed() const {
    return std::uint32_t{channel} << 24 | std::uint32_t{operation} << 8 | fragment;
  }
  static constexpr Tag unpack(std::uint32_t word) {
    return {static_cast<std::uint8_t>(word >> 24), static_cast<std::uint16_t>(word >> 8),
            static_cast<std::uint8_t>(word)};
  }
  friend constexpr bool operator==(Tag, Tag) = default;
};

/// The number nearest to `reference` whose low 16 bits are `low`. Example: widen(0x0001, 0x1fffe) == 0x20001.
constexpr std::uint64_t widen(std::uint16_t low, std::uint64_t reference) {
  auto const delta = static_cast<std::int16_t>(static_cast<std::uint16_t>(low - static_cast<std::uint16_t>(reference)));
  return reference + static_cast<std::uint64_t>(static_cast<std::int64_t>(delta));
}

}  // namespace headway::comm
