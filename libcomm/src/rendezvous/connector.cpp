#include "rendezvous/connector.hpp"

#include "headway/comm/status.hpp"
#include "rendezvous/sockets.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace headway::comm {
namespace {

using Outcome = Attempt::Outcome;

// @returns whether `socket` has `events` (or an error, which the next call on it shows) before the deadline.
bool wait_for(int socket, short events, Deadline deadline, int interrupt_fd) {
  for (;;) {
    std::array<pollfd, 2> polled = {{{socket, events, 0}, {interrupt_fd, POLLIN, 0}}};
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    int const count = ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if (count < 0 && errno != EINTR) throw SystemError("poll", errno, "connecting");
    if (count > 0 && polled[1].revents != 0) return false;
    if (count > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

Attempt failed(Outcome outcome, std::string error) {
  return {.outcome = outcome, .socket = {}, .error = std::move(error)};
}

// A name or port where nobody listens will not come back: its owner listened before it published the contact. A full
// queue of connections, by contrast, is a matter of patience.
Outcome outcome_of(int connect_error) {
  bool const nobody = connect_error == ECONNREFUSED || connect_error == ENOENT || connect_error == EACCES ||
                      connect_error == EPERM || connect_error == ENETUNREACH || connect_error == EHOSTUNREACH ||
                      connect_error == EADDRNOTAVAIL || connect_error == EAFNOSUPPORT || connect_error == ETIMEDOUT;
  return nobody ? Outcome::kElsewhere : Outcome::kAgain;
}

int finish_connect(int socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Both directions take turns and every message fits the socket's buffer, so blocking in one cannot block the other.
bool send_all(int socket, std::span<std::byte const> bytes, Deadline deadline, int interrupt_fd) {
  while (!bytes.empty()) {
    ssize_t const count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLOUT, deadline, interrupt_fd)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// @returns the handshake's outcome; kGoing if the connection broke or time ran out, which `error` then tells.
Handshake::Outcome run_handshake(int socket, Handshake& handshake, Deadline deadline, int interrupt_fd,
                                 std::string& error) {
  std::array<std::byte, 4096> buffer;
  for (;;) {
    if (!send_all(socket, handshake.take_output(), deadline, interrupt_fd)) {
      error = "it closed the connection";
    }
    std::size_t const wanted = handshake.wanted();
    if (wanted == 0) return handshake.outcome();
    ssize_t const count = ::recv(socket, buffer.data(), std::min(wanted, buffer.size()), 0);
    if (count > 0) {
      handshake.receive(std::span(buffer).first(static_cast<std::size_t>(count)));
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (wait_for(socket, POLLIN, deadline, interrupt_fd)) continue;
      error = "it did not answer in time";
      return Handshake::Outcome::kGoing;
    } else if (count == 0 || errno != EINTR) {
      error = "it closed the connection";
      return Handshake::Outcome::kGoing;
    }
  }
}

}  // namespace

Attempt try_to_connect(SocketAddress const& address, HandshakeSelf const& self, int peer, Contact const& contact,
                       Deadline deadline, int interrupt_fd) {
  FileDescriptor socket;
  int error = start_connect(address, socket);
  if (error == EINPROGRESS) {
    if (!wait_for(socket.get(), POLLOUT, deadline, interrupt_fd)) return failed(Outcome::kElsewhere, "no answer");
    error = finish_connect(socket.get());
  }
  if (error != 0) return failed(outcome_of(error), std::strerror(error));

  auto handshake = Handshake::connect(self, peer, contact.instance);
  std::string broken;
  switch (run_handshake(socket.get(), handshake, deadline, interrupt_fd, broken)) {
    case Handshake::Outcome::kDone:
      return {.outcome = Outcome::kConnected, .socket = std::move(socket), .error = {}};
    case Handshake::Outcome::kDisagreement:
      return failed(Outcome::kDisagreement, handshake.error());
    case Handshake::Outcome::kRefused:
      return failed(Outcome::kRefused, handshake.error());
    case Handshake::Outcome::kStranger:
      return failed(Outcome::kElsewhere, handshake.error());
    case Handshake::Outcome::kGoing:
      break;
  }
  return failed(Outcome::kAgain, broken);
}

std::vector<SocketAddress> candidate_addresses(Contact const& peer, std::string const& own_host, Engine engine) {
  bool const may_be_here = peer.host == own_host || peer.host.empty() || own_host.empty();
  std::vector<SocketAddress> candidates;
  if (engine != Engine::kTcp && may_be_here && !peer.local_name.empty()) {
    candidates.push_back(SocketAddress::local(peer.local_name));
  }
  for (auto const& address : peer.addresses) {
    if (!address.is_loopback() || may_be_here) candidates.push_back(address);
  }
  // Within one host the loopback interface is the shortest way.
  if (may_be_here) {
    std::stable_partition(candidates.begin(), candidates.end(),
                          [](auto const& each) { return each.is_local() || each.is_loopback(); });
  }
  return candidates;
}

}  // namespace headway::comm
