// SPDX-License-Identifier: Apache-2.0

#include "bootstrap/socket_store.hpp"

#include "bootstrap/bytes.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/status.hpp"
#include "system/sockets.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace headway::comm {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick(100);
/// A value fits the buffer of a socket. A peer that has not read so little for so long never will.
constexpr milliseconds kSendTime(10'000);

/// Waits until the socket can be read or written, at most until `until`. @returns whether it can.
bool await(int socket, short events, Deadline until) {
  auto const left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  pollfd waited{.fd = socket, .events = events, .revents = 0};
  return ::poll(&waited, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000))) > 0;
}

}  // namespace

SocketStore::SocketStore(base::FileDescriptor socket, std::string peer, std::function<void()> while_waiting)
    : socket_(std::move(socket)), peer_(std::move(peer)), while_waiting_(std::move(while_waiting)) {}

void SocketStore::set(std::string const& key, std::string_view value) {
  values_.insert_or_assign(key, std::string(value));
  auto const body = ByteWriter().text(key).text(value).take();
  expects(body.size() <= kMostBytes, "the value of '" + key + "' is too long for a link");
  auto const message = encode_message(BootstrapMessageKind::kStoreValue, body);
  std::span<std::byte const> rest = message;
  Deadline const until = deadline_after(kSendTime);
  while (!rest.empty()) {
    ssize_t const sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      rest = rest.subspan(static_cast<std::size_t>(sent));
    } else if (would_block() && Clock::now() < until) {
      await(socket_.get(), POLLOUT, until);
    } else if (errno != EINTR) {
      throw SystemError("send", errno, peer_);
    }
  }
}

std::string SocketStore::get(std::string const& key, milliseconds timeout) {
  Deadline const until = deadline_after(timeout);
  for (;;) {
    bool const is_open = read_available();
    if (auto const found = values_.find(key); found != values_.end()) return found->second;
    if (!is_open) throw PeerClosed(peer_ + " closed the connection before it sent '" + key + "'");
    auto const now = Clock::now();
    if (now >= until) {
      throw SystemError(peer_ + " did not send '" + key + "' within " + std::to_string(timeout.count()) + " ms");
    }
    await(socket_.get(), POLLIN, std::min(until, now + kTick));
    if (while_waiting_) while_waiting_();
  }
}

bool SocketStore::read_available() {
  std::array<std::byte, 4096> buffer;
  for (;;) {
    ssize_t const count = ::recv(socket_.get(), buffer.data(), std::min(buffer.size(), reader_.wanted()), 0);
    if (count == 0) return false;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block()) return true;
    if (count < 0) {
      if (errno == ECONNRESET) return false;
      throw SystemError("recv", errno, peer_);
    }
    reader_.feed(std::span(buffer).first(static_cast<std::size_t>(count)));
    if (!reader_.error().empty()) throw SystemError(peer_ + ": " + std::string(reader_.error()));
    if (auto const message = reader_.take()) keep(*message);
  }
}

void SocketStore::keep(Message const& message) {
  ByteReader body(message.body);
  std::string key = body.text(kMostBytes);
  std::string value = body.text(kMostBytes);
  bool const is_value = message.kind == BootstrapMessageKind::kStoreValue && body.complete();
  if (!is_value || ++num_received_ > kMostValues) {
    throw SystemError(peer_ + ": it sent " + (is_value ? "too many values" : "what is no value of a link"));
  }
  values_.insert_or_assign(std::move(key), std::move(value));
}

}  // namespace headway::comm
