// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace headway::comm {

/// Fills `bytes` from the kernel's random generator. @throws SystemError if it has none.
void fill_random(std::span<std::byte> bytes);

/// Bytes of secrets, nonces and names that must not collide. @throws SystemError like fill_random().
template <std::size_t kNumBytes>
[[nodiscard]] std::array<std::byte, kNumBytes> random_bytes() {
  std::array<std::byte, kNumBytes> bytes;
  fill_random(bytes);
  return bytes;
}

/// Encodes each byte as two lower-case hexadecimal digits.
[[nodiscard]] std::string to_hex(std::span<std::byte const> bytes);

}  // namespace headway::comm
