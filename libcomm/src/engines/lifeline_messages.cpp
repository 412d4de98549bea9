#include "engines/lifeline_messages.hpp"

#include "headway/comm/status.hpp"

#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <string>

namespace headway::comm {

namespace {

constexpr int kExchangeTimeoutS = 60;

std::string rank_text(int peer) { return "rank " + std::to_string(peer); }

}  // namespace

void send_all(int socket, std::span<std::byte const> bytes, int peer) {
  while (!bytes.empty()) {
    ssize_t const count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("send", errno, rank_text(peer));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void receive_all(int socket, std::span<std::byte> bytes, int peer) {
  timeval const limit{.tv_sec = kExchangeTimeoutS, .tv_usec = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  while (!bytes.empty()) {
    ssize_t const count = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) throw SystemError("recv", ECONNRESET, rank_text(peer) + " went away while connecting");
    if (count < 0) throw SystemError("recv", errno, rank_text(peer));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace headway::comm
