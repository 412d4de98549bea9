// SPDX-License-Identifier: Apache-2.0

// SHA-256 and HMAC for the handshake, so that the library links to no cryptographic library.
//
// SHA-256 reads blocks of 64 bytes. Each block is expanded to 64 words (message_schedule()), and 64 rounds mix them
// into eight words of state. The last block is padded with a bit 1, zeros, and the length in bits.
//
// HMAC is hash(key ^ 0x5c.. || hash(key ^ 0x36.. || message)). Hashing twice is needed because of how SHA-256 ends:
// whoever knows hash(key || message) could compute the hash of a longer message without the key.
//
// Example: "abc" is padded to 61 62 63 80, 52 zero bytes, and the length 24 in 8 bytes: one block.
// Source: FIPS 180-4 (SHA-256), RFC 2104 (HMAC). Tests compare with the published vectors.

#include "bootstrap/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace headway::comm {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(std::byte const* bytes) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

void store_big_endian(std::uint64_t word, std::size_t num_bytes, std::byte* bytes) {
  for (std::size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<std::byte>(word >> (8 * (num_bytes - 1 - i)));
}

std::array<std::uint32_t, 64> message_schedule(std::byte const* block) {
  std::array<std::uint32_t, 64> words;
  for (std::size_t t = 0; t < 16; ++t) words[t] = load_big_endian(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    std::uint32_t const s0 = std::rotr(words[t - 15], 7) ^ std::rotr(words[t - 15], 18) ^ (words[t - 15] >> 3);
    std::uint32_t const s1 = std::rotr(words[t - 2], 17) ^ std::rotr(words[t - 2], 19) ^ (words[t - 2] >> 10);
    words[t] = words[t - 16] + s0 + words[t - 7] + s1;
  }
  return words;
}

}  // namespace

void Sha256::compress(std::byte const* block) {
  auto const words = message_schedule(block);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    std::uint32_t const sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    std::uint32_t const choice = (e & f) ^ (~e & g);
    std::uint32_t const t1 = h + sum1 + choice + kRoundConstants[t] + words[t];
    std::uint32_t const sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    std::uint32_t const majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  std::array<std::uint32_t, 8> const working = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += working[i];
}

Sha256& Sha256::update(std::span<std::byte const> bytes) {
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    std::size_t const taken = std::min(bytes.size(), kBlockBytes - block_used_);
    std::memcpy(block_.data() + block_used_, bytes.data(), taken);
    block_used_ += taken;
    bytes = bytes.subspan(taken);
    if (block_used_ == kBlockBytes) {
      compress(block_.data());
      block_used_ = 0;
    }
  }
  return *this;
}

Digest Sha256::finish() {
  std::array<std::byte, 8> length;
  store_big_endian(total_bytes_ * 8, length.size(), length.data());
  std::array<std::byte, kBlockBytes> padding{std::byte{0x80}};
  std::size_t const length_at = kBlockBytes - length.size();
  std::size_t const padding_bytes =
      block_used_ < length_at ? length_at - block_used_ : kBlockBytes + length_at - block_used_;
  update(std::span(padding).first(padding_bytes)).update(length);
  Digest digest;
  for (std::size_t i = 0; i < state_.size(); ++i) store_big_endian(state_[i], 4, digest.data() + 4 * i);
  return digest;
}

Digest sha256(std::span<std::byte const> bytes) { return Sha256().update(bytes).finish(); }

Digest hmac_sha256(std::span<std::byte const> key, std::span<std::byte const> message) {
  std::array<std::byte, 64> block_key{};
  if (key.size() > block_key.size()) {
    Digest const short_key = sha256(key);
    std::copy(short_key.begin(), short_key.end(), block_key.begin());
  } else {
    std::copy(key.begin(), key.end(), block_key.begin());
  }
  auto inner_key = block_key;
  auto outer_key = block_key;
  for (auto& byte : inner_key) byte ^= std::byte{0x36};
  for (auto& byte : outer_key) byte ^= std::byte{0x5c};
  Digest const inner = Sha256().update(inner_key).update(message).finish();
  return Sha256().update(outer_key).update(inner).finish();
}

bool equal_in_constant_time(std::span<std::byte const> a, std::span<std::byte const> b) {
  if (a.size() != b.size()) return false;
  std::byte difference{0};
  // All bytes are compared even after a difference. A comparison that stops early would tell by its time how many
  // bytes of a guessed proof are right.
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace headway::comm
