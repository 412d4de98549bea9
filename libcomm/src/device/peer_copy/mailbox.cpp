// SPDX-License-Identifier: Apache-2.0

// Datagram socket on which file descriptors of exported memory arrive (SCM_RIGHTS); mailbox.hpp has the interface.

#include "device/peer_copy/mailbox.hpp"

#include "headway/comm/status.hpp"
#include "system/descriptor_message.hpp"
#include "system/random.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace headway::comm::peer_copy {

namespace {

constexpr int kPollSliceMs = 100;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address address_of(std::string const& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  expects(name.size() < sizeof address.name.sun_path, "the name of a mailbox is too long: " + name);
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

sockaddr const* as_socket_address(Address const& address) { return reinterpret_cast<sockaddr const*>(&address.name); }

}  // namespace

Mailbox::Mailbox()
    : name_("headway-" + to_hex(random_bytes<16>())),
      socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!socket_.valid()) throw SystemError("socket", errno, "AF_UNIX");
  Address const address = address_of(name_);
  if (::bind(socket_.get(), as_socket_address(address), address.length) != 0) throw SystemError("bind", errno, name_);
}

Delivery Mailbox::send(std::string const& to, Nonce const& nonce, std::array<int, 2> descriptors, int peer) const {
  Nonce body = nonce;
  Address address = address_of(to);
  DescriptorMessage message(body);
  message.header().msg_name = &address.name;
  message.header().msg_namelen = address.length;
  message.attach(descriptors);
  for (;;) {
    if (::sendmsg(socket_.get(), &message.header(), MSG_NOSIGNAL) >= 0) return Delivery::kDone;
    if (errno == EINTR) continue;
    // ETOOMANYREFS: this user has as many descriptors in flight as one process may have open (RLIMIT_NOFILE). The
    // number falls when receivers take their messages, so the caller may retry.
    bool const is_full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS;
    if (is_full) return Delivery::kFull;
    if (errno == ECONNREFUSED) return Delivery::kGone;
    throw SystemError("sendmsg", errno, "descriptors of CUDA memory for rank " + std::to_string(peer));
  }
}

std::optional<Mailbox::Message> Mailbox::take(Nonce const& nonce) {
  auto const found = expected_.find(nonce);
  auto const is_missing = [&] { return found == expected_.end() || found->second.empty(); };
  // Even if `nonce` is not expected: a message that stays in the socket would end each poll() of receive() at once.
  while (is_missing() && receive_message()) {
  }
  if (is_missing()) return std::nullopt;
  auto message = std::move(found->second.front());
  found->second.pop_front();
  return message;
}

bool Mailbox::receive_message() {
  Nonce nonce{};
  DescriptorMessage message(nonce);
  ssize_t count = -1;
  do {
    count = ::recvmsg(socket_.get(), &message.header(), MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (count < 0) throw SystemError("recvmsg", errno, "descriptors of a peer's CUDA memory");
  bool const were_truncated = message.were_descriptors_truncated();
  auto descriptors = message.take();
  // Any process in the same network namespace can send to an abstract socket. Descriptors without an expected nonce
  // are closed here.
  bool const is_whole = count == static_cast<ssize_t>(nonce.size()) && descriptors[1].valid();
  auto const found = expected_.find(nonce);
  if (found != expected_.end() && were_truncated) {
    throw SystemError("recvmsg", EMFILE, "descriptors of a peer's CUDA memory");
  }
  if (is_whole && found != expected_.end()) found->second.push_back(std::move(descriptors));
  return true;
}

std::array<base::FileDescriptor, 2> Mailbox::receive(Nonce const& nonce, Deadline deadline, int peer,
                                                     std::function<void()> const& while_waiting) {
  for (;;) {
    if (auto message = take(nonce)) return *std::move(message);
    while_waiting();
    if (Clock::now() > deadline) {
      throw SystemError("rank " + std::to_string(peer) + " sent no descriptors of its CUDA memory in time");
    }
    pollfd wanted{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    ::poll(&wanted, 1, kPollSliceMs);
  }
}

}  // namespace headway::comm::peer_copy
