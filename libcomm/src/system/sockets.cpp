// SPDX-License-Identifier: Apache-2.0

// Sockets of TCP and of the local host: listening, connecting without blocking, and their options.
//
// Example: on a host with the addresses 10.0.0.7 and fd00::7, listen_tcp("") opens one socket for both families at
// port 41,000, say, and tells peers to try 10.0.0.7:41000 and [fd00::7]:41000. listen_tcp("eth0") opens one socket
// for each address of that interface, so peers cannot come in by another.

#include "system/sockets.hpp"

#include "headway/base/open_files.hpp"
#include "headway/comm/status.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

namespace headway::comm {
namespace {

void set_option(int socket, int level, int option, int value, char const* name) {
  if (::setsockopt(socket, level, option, &value, sizeof(value)) != 0) {
    throw SystemError(std::string("setsockopt ") + name, errno, "");
  }
}

// Falls back to IPv4 if IPv6 is disabled.
base::FileDescriptor listen_on_all() {
  try {
    return listen_on(*SocketAddress::numeric("::", 0));
  } catch (SystemError const&) {
    return listen_on(*SocketAddress::numeric("0.0.0.0", 0));
  }
}

SocketAddress address_from(int (*call)(int, sockaddr*, socklen_t*), char const* name, int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  if (call(socket, address, &length) != 0) throw SystemError(name, errno, "");
  return {address, length};
}

}  // namespace

base::FileDescriptor listen_on(SocketAddress const& address) {
  base::FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) throw SystemError("socket", errno, address.to_string());
  // An IPv6 socket on "::" accepts IPv4 connections too.
  if (address.family() == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY");
  // A program that starts again gets its port though connections of the last one are in TIME_WAIT.
  if (!address.is_local()) set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (::bind(socket.get(), address.raw(), address.length()) != 0) throw SystemError("bind", errno, address.to_string());
  if (::listen(socket.get(), SOMAXCONN) != 0) throw SystemError("listen", errno, address.to_string());
  return socket;
}

std::vector<InterfaceAddress> addresses_of_interface(std::string const& interface) {
  std::string present;
  std::vector<InterfaceAddress> found;
  for (auto const& each : interface_addresses()) {
    if (interface == each.interface || interface == each.address.ip()) found.push_back(each);
    present += (present.empty() ? "" : ", ") + each.interface + " (" + each.address.ip() + ")";
  }
  expects(!found.empty(), "interface is '" + interface +
                              "', which is no interface of this host that is up, nor one of " +
                              "its addresses; there are " + present);
  return found;
}

std::vector<TcpListener> listen_tcp(std::string const& interface) {
  std::vector<TcpListener> listeners;
  if (!interface.empty()) {
    for (auto const& each : addresses_of_interface(interface)) {
      auto& listener = listeners.emplace_back();
      listener.socket = listen_on(each.address);
      listener.reachable_at = {own_address(listener.socket.get())};
    }
    return listeners;
  }
  auto& listener = listeners.emplace_back();
  listener.socket = listen_on_all();
  SocketAddress const bound = own_address(listener.socket.get());
  for (auto const& address : host_addresses()) {
    if (address.family() == AF_INET || bound.family() == AF_INET6) {
      listener.reachable_at.push_back(address.with_port(bound.port()));
    }
  }
  return listeners;
}

int start_connect(SocketAddress const& address, SocketAddress const& source, base::FileDescriptor& socket) {
  socket = base::FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Out of descriptors: no other address would do better.
  if (!socket.valid() && base::is_out_of_files(errno)) throw SystemError("socket", errno, address.to_string());
  if (!socket.valid()) return errno;
  if (!address.is_local()) tune_connection(socket.get());
  if (source.length() > 0 && !address.is_local()) {
    // Without this option, bind() would take a port for all destinations at once, and a host has about 28,000 of them.
    int const on = 1;  // Delays the choice of the port until connect(), so that ports suffice. Best effort.
    ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (::bind(socket.get(), source.raw(), source.length()) != 0) return errno;
  }
  return ::connect(socket.get(), address.raw(), address.length()) == 0 ? 0 : errno;
}

// A host that vanished is noticed after 5 s of silence and three probes, 2 s apart: 11 s. The library's small
// messages, such as the reports of a failure, must not wait for more data (Nagle's algorithm).
void tune_connection(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5, "TCP_KEEPIDLE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2, "TCP_KEEPINTVL");
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT");
}

// 0 stands for a process that this one's PID namespace does not show.
int peer_process(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return -1;
  return credentials.pid > 0 ? credentials.pid : -1;
}

void set_blocking(int socket) {
  int const flags = ::fcntl(socket, F_GETFL);
  if (flags < 0 || ::fcntl(socket, F_SETFL, flags & ~O_NONBLOCK) < 0) throw SystemError("fcntl", errno, "");
}

SocketAddress own_address(int socket) { return address_from(::getsockname, "getsockname", socket); }

SocketAddress peer_address(int socket) { return address_from(::getpeername, "getpeername", socket); }

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace headway::comm
