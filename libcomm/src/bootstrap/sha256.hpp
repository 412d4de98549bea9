// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::comm {

using Digest = std::array<std::byte, 32>;

/// SHA-256 (FIPS 180-4) over bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256() = default;
  Sha256& update(std::span<std::byte const> bytes);
  /// Digest of all bytes so far. Do not use the object afterwards.
  [[nodiscard]] Digest finish();

 private:
  static constexpr std::size_t kBlockBytes = 64;
  void compress(std::byte const* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> block_{};
  std::size_t block_used_ = 0;
  std::uint64_t total_bytes_ = 0;
};

[[nodiscard]] Digest sha256(std::span<std::byte const> bytes);

/// HMAC-SHA-256 (RFC 2104).
[[nodiscard]] Digest hmac_sha256(std::span<std::byte const> key, std::span<std::byte const> message);

/// Comparison whose time does not depend on the position of a difference.
[[nodiscard]] bool equal_in_constant_time(std::span<std::byte const> a, std::span<std::byte const> b);

}  // namespace headway::comm
