// SPDX-License-Identifier: Apache-2.0
#include "system/random.hpp"

#include "headway/comm/status.hpp"

#include <sys/random.h>

#include <cerrno>
#include <string_view>

namespace headway::comm {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    // A signal may cut a request of more than 256 bytes short. Waits only early in the boot of a host.
    ssize_t const count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("getrandom", errno, "");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string to_hex(std::span<std::byte const> bytes) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (std::byte const byte : bytes) {
    text += kHexDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kHexDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace headway::comm
