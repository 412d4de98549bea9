// SPDX-License-Identifier: Apache-2.0

// Keys and their hash. Everything that spreads keys (stripes, buckets, probes, ranks) takes bits of one 128-bit hash,
// and each takes different bits, so that the keys of one rank or stripe are still uniform in all other respects. A
// stripe is one of the 64 parts of a table's key index; a segment is a hash table in it.

#pragma once

#include <cstdint>

namespace headway::embedding {

/// Key of a row: an id of any value, and the id of its table, since tables of equal options are merged into one key
/// index.
struct Key {
  std::uint64_t id = 0;
  std::uint32_t table = 0;

  friend bool operator==(Key const&, Key const&) = default;
};

/// 128-bit hash of a key, as two independent words.
struct Hash {
  std::uint64_t low = 0, high = 0;

  friend bool operator==(Hash const&, Hash const&) = default;
};

namespace detail {

constexpr std::uint64_t rotate_left(std::uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53;
  return value ^ (value >> 33);
}

}  // namespace detail

/// MurmurHash3 (x64, 128 bits; A. Appleby) of the 16 bytes `first`, `second`, both little-endian.
constexpr Hash murmur_hash3(std::uint64_t first, std::uint64_t second, std::uint32_t seed = 0) {
  constexpr std::uint64_t kFirst = 0x87c37b91114253d5, kSecond = 0x4cf5ad432745937f, kNumBytes = 16;
  std::uint64_t low = seed, high = seed;
  low ^= detail::rotate_left(first * kFirst, 31) * kSecond;
  low = (detail::rotate_left(low, 27) + high) * 5 + 0x52dce729;
  high ^= detail::rotate_left(second * kSecond, 33) * kFirst;
  high = (detail::rotate_left(high, 31) + low) * 5 + 0x38495ab5;
  low ^= kNumBytes;
  high ^= kNumBytes;
  low += high;
  high += low;
  low = detail::mix(low);
  high = detail::mix(high);
  low += high;
  high += low;
  return {.low = low, .high = high};
}

/// Hash of a key. Fixed forever: indexes, routing and checkpoints use it on all devices.
/// `low`: the highest bits choose the stripe and segment, the lowest bits the bucket.
/// `high`: the lowest bits choose the probe step, the highest bits the virtual bucket (owner rank).
constexpr Hash hash_of(Key key) { return murmur_hash3(key.id, key.table); }

}  // namespace headway::embedding
