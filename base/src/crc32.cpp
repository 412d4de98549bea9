// SPDX-License-Identifier: Apache-2.0

// CRC-32, eight bytes at a time.
//
// Idea: the CRC (`sum`) is linear over GF(2), so the effect of a byte is an entry of a table, and bytes at different
// distances from the end of an eight-byte word have a table each. A word takes eight lookups that do not wait for each
// other.
//
// Example: crc32("123456789") is 0xCBF43926, the check value of this code.
// Invariants: kTables[d][b] is the CRC of byte b followed by d zero bytes, without the inversions at begin and end.
//   `so_far` is the CRC of the bytes before `bytes`.
// Complexity: O(bytes), 1.5 to 3 GB/s; 8 KiB of tables.
// Source: M. Kounavis and F. Berry, "A systematic approach to building high performance software-based CRC generators",
//   ISCC 2005 (slicing by eight).

#include "headway/base/crc32.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace headway::base {

namespace {

constexpr std::uint32_t kPolynomial = 0xEDB88320;  ///< 0x04C11DB7 with its bits reversed.
constexpr std::size_t kWord = 8;

constexpr std::array<std::array<std::uint32_t, 256>, kWord> make_tables() {
  std::array<std::array<std::uint32_t, 256>, kWord> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum & 1) != 0 ? sum >> 1 ^ kPolynomial : sum >> 1;
    tables[0][byte] = sum;
  }
  for (std::size_t distance = 1; distance < kWord; ++distance) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::uint32_t const nearer = tables[distance - 1][byte];
      tables[distance][byte] = nearer >> 8 ^ tables[0][nearer & 0xFF];
    }
  }
  return tables;
}

constexpr auto kTables = make_tables();

}  // namespace

std::uint32_t crc32(std::span<std::byte const> bytes, std::uint32_t so_far) {
  static_assert(std::endian::native == std::endian::little, "words are read in little-endian order");
  std::uint32_t sum = ~so_far;
  while (bytes.size() >= kWord) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), kWord);
    word ^= sum;
    sum = 0;
    for (std::size_t i = 0; i < kWord; ++i) sum ^= kTables[kWord - 1 - i][word >> 8 * i & 0xFF];
    bytes = bytes.subspan(kWord);
  }
  for (auto const byte : bytes) sum = sum >> 8 ^ kTables[0][(sum ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  return ~sum;
}

}  // namespace headway::base
