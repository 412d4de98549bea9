// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>

namespace headway::benchmarks {

/// @throws std::system_error if a system call has failed
inline void check(ssize_t result, char const* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
}

inline void send_all(int socket, std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    auto const sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    check(sent, "send");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

/// @returns false at the end of the connection
inline bool receive_all(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    auto const count = ::recv(socket, bytes.data(), bytes.size(), 0);
    check(count, "recv");
    if (count == 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace headway::benchmarks
