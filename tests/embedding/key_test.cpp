// SPDX-License-Identifier: Apache-2.0

// Hash of a key: MurmurHash3 of its id and its table's number. It must never change: ranks, devices and checkpoints
// depend on it.

#include "headway/embedding/key.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace headway::embedding {
namespace {

struct Known {
  std::uint64_t first, second;  ///< The 16 bytes to hash.
  std::uint32_t seed;
  Hash hash;
};

TEST(MurmurHash3, IsThatOfTheReference) {
  // Computed with mmh3 5.3.1: hash64(struct.pack("<QQ", first, second), seed, signed=False).
  constexpr std::array<Known, 5> kKnown{{
      {0, 0, 0, {0x4bbd1bf27da918d6, 0xb465a9eccd791cb6}},
      {1, 0, 0, {0xc1c4c5ee113872db, 0x17edc9d0759f4dce}},
      {0x123456789abcdef, 7, 0, {0x2506542fd2578d1d, 0xc34dac7b76b58c9e}},
      {~std::uint64_t{0}, ~std::uint64_t{0}, 0, {0xd8ce73d7a39a46e6, 0xd0ac179d2650b632}},
      {42, 3, 0x9747b28c, {0x71664bb1d00ab130, 0x5a2fbcc6fb4bcb79}},
  }};
  for (auto const& known : kKnown) {
    EXPECT_EQ(murmur_hash3(known.first, known.second, known.seed), known.hash) << known.first;
  }
}

TEST(MurmurHash3, OfAKeyTakesTheTableIn) {
  static_assert(hash_of({.id = 0x123456789abcdef, .table = 7}) == murmur_hash3(0x123456789abcdef, 7));
  EXPECT_NE(hash_of({.id = 5, .table = 0}), hash_of({.id = 5, .table = 1}));
}

}  // namespace
}  // namespace headway::embedding
