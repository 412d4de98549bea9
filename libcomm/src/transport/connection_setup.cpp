// SPDX-License-Identifier: Apache-2.0

// Blocking steps of setting up connections, with a deadline. A caller that waits for a slow peer still gets its
// callback about every 100 ms, so that Python can handle Ctrl-C.

#include "transport/connection_setup.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace headway::comm {

namespace {

using std::chrono::milliseconds;

/// Longest wait between two calls of while_waiting().
constexpr milliseconds kSlice{100};

std::string rank_text(int peer) { return "rank " + std::to_string(peer); }

}  // namespace

PeerGoneError::PeerGoneError(int peer) : SystemError(rank_text(peer) + " went away while connecting") {}

void wait_for_peer(int socket, short events, int peer, SetupPatience const& patience) {
  for (;;) {
    auto const left = std::chrono::ceil<milliseconds>(patience.deadline - Clock::now());
    if (left <= milliseconds(0)) throw SystemError(rank_text(peer) + " did not get its transports ready in time");
    pollfd polled{.fd = socket, .events = events, .revents = 0};
    int const count = ::poll(&polled, 1, static_cast<int>(std::min(left, kSlice).count()));
    if (count > 0) return;
    if (count < 0 && errno != EINTR) throw SystemError("poll", errno, rank_text(peer));
    if (patience.while_waiting) patience.while_waiting();
  }
}

void wait_or_throw(char const* call, int socket, short events, int peer, SetupPatience const& patience) {
  if (errno == EINTR) return;
  if (errno == EPIPE || errno == ECONNRESET) throw PeerGoneError(peer);
  if (errno != EAGAIN && errno != EWOULDBLOCK) throw SystemError(call, errno, rank_text(peer));
  wait_for_peer(socket, events, peer, patience);
}

void send_all(int socket, std::span<std::byte const> bytes, int peer, SetupPatience const& patience) {
  while (!bytes.empty()) {
    ssize_t const count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      wait_or_throw("send", socket, POLLOUT, peer, patience);
    } else {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
}

void receive_all(int socket, std::span<std::byte> bytes, int peer, SetupPatience const& patience) {
  while (!bytes.empty()) {
    ssize_t const count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0) throw PeerGoneError(peer);
    if (count < 0) {
      wait_or_throw("recv", socket, POLLIN, peer, patience);
    } else {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
}

}  // namespace headway::comm
