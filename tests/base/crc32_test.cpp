// SPDX-License-Identifier: Apache-2.0

// crc32(): the check value of zlib's CRC-32, sums that are continued, and single-bit errors.

#include "headway/base/crc32.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace headway::base {
namespace {

std::uint32_t sum_of(std::string_view text, std::uint32_t so_far = 0) {
  return crc32(std::as_bytes(std::span(text.data(), text.size())), so_far);
}

TEST(Crc32, HasTheCheckValueOfItsCatalogue) {
  EXPECT_EQ(sum_of("123456789"), 0xCBF43926U);
  EXPECT_EQ(sum_of(""), 0U);
}

TEST(Crc32, GoesOnWhereItStopped) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37);
  for (std::size_t begin = 0; begin <= text.size(); ++begin) {
    std::string_view const all = text;
    EXPECT_EQ(sum_of(all.substr(begin), sum_of(all.substr(0, begin))), sum_of(all)) << begin;
  }
}

TEST(Crc32, FindsEveryFlippedBit) {
  std::string const text(40, 'x');
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    auto altered = text;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(sum_of(altered), sum_of(text));
  }
}

}  // namespace
}  // namespace headway::base
