// SPDX-License-Identifier: Apache-2.0

// Out-of-band messages: 4 bytes length, then the text. They are small and rare; a socket buffer holds many of them,
// so sending never waits. A length above the limit means that the stream is broken, and the peer is given up.

#include "transport/oob_socket.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace headway::comm {

bool OobSocket::is_hung_up() const {
  pollfd entry{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

void OobSocket::send(std::string_view text) const noexcept {
  auto const length = static_cast<std::uint32_t>(std::min(text.size(), kMaxOobBytes));
  std::array<char, sizeof length + kMaxOobBytes> frame;
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + sizeof length, text.data(), length);
  [[maybe_unused]] auto const sent =
      ::send(socket_.get(), frame.data(), sizeof length + length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool OobSocket::receive(int peer, ArrivalSink& sink) {
  bool is_open = true;
  for (;;) {
    std::array<char, kMaxOobBytes> buffer;
    ssize_t const count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0 || (count < 0 && errno != EAGAIN)) is_open = false;
    if (count <= 0) break;
    input_.insert(input_.end(), buffer.data(), buffer.data() + count);
  }
  for (;;) {
    std::uint32_t length = 0;
    if (input_.size() < sizeof length) break;
    std::memcpy(&length, input_.data(), sizeof length);
    if (length > kMaxOobBytes) return false;
    if (input_.size() < sizeof length + length) break;
    sink.on_oob(peer, std::string_view(input_.data() + sizeof length, length));
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(sizeof length + length));
  }
  return is_open;
}

}  // namespace headway::comm
