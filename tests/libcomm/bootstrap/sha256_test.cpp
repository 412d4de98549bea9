// SPDX-License-Identifier: Apache-2.0

// SHA-256 and HMAC against published vectors: the examples of FIPS 180-4 and those of RFC 4231, and lengths around
// the boundary of 56 bytes, where the padding needs a second block. Feeding a message in pieces must give the digest
// of the whole.

#include "bootstrap/sha256.hpp"

#include "system/random.hpp"

#include <gtest/gtest.h>

#include <string>

namespace headway::comm {
namespace {

std::span<std::byte const> bytes_of(std::string const& text) { return std::as_bytes(std::span(text)); }

std::string repeated(unsigned char byte, std::size_t count) { return std::string(count, static_cast<char>(byte)); }

/// Message and hex digest.
struct Sha256Vector {
  std::string message;
  std::string digest;
};

class Sha256Vectors : public testing::TestWithParam<Sha256Vector> {};

TEST_P(Sha256Vectors, AreMet) { EXPECT_EQ(to_hex(sha256(bytes_of(GetParam().message))), GetParam().digest); }

// NIST's examples of FIPS 180-4, and lengths around the block boundary of the padding.
INSTANTIATE_TEST_SUITE_P(
    Nist, Sha256Vectors,
    testing::Values(
        Sha256Vector{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        Sha256Vector{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        Sha256Vector{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        Sha256Vector{"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                     "mnopqrstnopqrstu",
                     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
        Sha256Vector{repeated('a', 1'000'000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}));

TEST(Sha256, PiecesOfAnyLengthGiveTheSameDigestAsTheWhole) {
  std::string const message = repeated('x', 300);
  for (std::size_t total = 0; total <= message.size(); ++total) {
    for (std::size_t piece : {1, 7, 55, 56, 63, 64, 65}) {
      Sha256 hash;
      for (std::size_t at = 0; at < total; at += piece)
        hash.update(bytes_of(message.substr(at, std::min(piece, total - at))));
      ASSERT_EQ(hash.finish(), sha256(bytes_of(message.substr(0, total)))) << total << " bytes by " << piece;
    }
  }
}

/// Key, message and hex digest.
struct HmacVector {
  std::string key;
  std::string message;
  std::string digest;
};

class HmacVectors : public testing::TestWithParam<HmacVector> {};

TEST_P(HmacVectors, AreMet) {
  EXPECT_EQ(to_hex(hmac_sha256(bytes_of(GetParam().key), bytes_of(GetParam().message))), GetParam().digest);
}

std::string counting_key() {
  std::string key;
  for (char c = 1; c <= 25; ++c) key += c;
  return key;
}

INSTANTIATE_TEST_SUITE_P(
    Rfc4231, HmacVectors,
    testing::Values(
        HmacVector{repeated(0x0b, 20), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        HmacVector{"Jefe", "what do ya want for nothing?",
                   "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        HmacVector{repeated(0xaa, 20), repeated(0xdd, 50),
                   "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        HmacVector{counting_key(), repeated(0xcd, 50),
                   "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        HmacVector{repeated(0xaa, 131), "Test Using Larger Than Block-Size Key - Hash Key First",
                   "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        HmacVector{repeated(0xaa, 131),
                   "This is a test using a larger than block-size key and a larger than block-size data. The key needs "
                   "to be hashed before being used by the HMAC algorithm.",
                   "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"}));

TEST(EqualInConstantTime, TellsEqualFromDifferent) {
  Digest const digest = sha256({});
  Digest other = digest;
  EXPECT_TRUE(equal_in_constant_time(digest, other));
  other[31] ^= std::byte{1};
  EXPECT_FALSE(equal_in_constant_time(digest, other));
  EXPECT_FALSE(equal_in_constant_time(digest, std::span(digest).first(31)));
}

}  // namespace
}  // namespace headway::comm
