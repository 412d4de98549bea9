// SPDX-License-Identifier: Apache-2.0
#include "device/peer_copy/mailbox.hpp"

#include "headway/comm/status.hpp"
#include "system/descriptor_message.hpp"
#include "system/random.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
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
  std::size_t const count = std::min(name.size(), sizeof address.name.sun_path - 1);
  std::memcpy(address.name.sun_path + 1, name.data(), count);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
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
    // ETOOMANYREFS: the user's descriptors in flight have reached its open-file limit. Receivers reduce them.
    bool const is_full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS;
    if (is_full) return Delivery::kFull;
    if (errno == ECONNREFUSED) return Delivery::kGone;
    throw SystemError("sendmsg", errno, "descriptors of CUDA memory for rank " + std::to_string(peer));
  }
}

std::optional<Mailbox::Message> Mailbox::take(Nonce const& nonce) {
  auto const found = expected_.find(nonce);
  while (found != expected_.end() && found->second.empty() && receive_message()) {
  }
  if (found == expected_.end() || found->second.empty()) return std::nullopt;
  auto message = std::move(found->second.front());
  found->second.pop_front();
  return message;
}

bool Mailbox::receive_message() {
  Nonce nonce{};
  DescriptorMessage message(nonce);
  ssize_t const count = ::recvmsg(socket_.get(), &message.header(), MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count < 0) return false;
  bool const lacks_descriptors = message.lacks_descriptors();
  auto descriptors = message.take();
  // Anyone on the host can send to an abstract socket. Without a known nonce the descriptors are closed and forgotten.
  bool const is_whole = count == static_cast<ssize_t>(nonce.size()) && descriptors[1].valid();
  auto const found = expected_.find(nonce);
  if (found != expected_.end() && lacks_descriptors) {
    throw SystemError("recvmsg", EMFILE, "descriptors of a peer's CUDA memory");
  }
  if (is_whole && found != expected_.end()) found->second.push_back(std::move(descriptors));
  return true;
}

std::array<base::FileDescriptor, 2> Mailbox::receive(Nonce const& nonce, Deadline deadline, int peer,
                                                     std::function<void()> const& look) {
  for (;;) {
    if (auto message = take(nonce)) return *std::move(message);
    look();
    if (Clock::now() > deadline) {
      throw SystemError("rank " + std::to_string(peer) + " sent no descriptors of its CUDA memory in time");
    }
    pollfd wanted{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    ::poll(&wanted, 1, kPollSliceMs);
  }
}

}  // namespace headway::comm::peer_copy
