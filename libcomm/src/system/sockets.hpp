// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "system/socket_address.hpp"

#include <string>
#include <vector>

namespace headway::comm {

/// Listens on `address`, non-blocking. @throws SystemError naming the address.
[[nodiscard]] base::FileDescriptor listen_on(SocketAddress const& address);

/// A listening TCP socket, and the addresses under which others reach it.
struct TcpListener {
  base::FileDescriptor socket;
  std::vector<SocketAddress> reachable_at;
};

/// Addresses, with port 0, of the interface named `interface`; or the address `interface` itself, if this host has it.
/// @throws UsageError if `interface` is neither an interface that is up nor an address of this host. The error lists
/// those that exist.
[[nodiscard]] std::vector<InterfaceAddress> addresses_of_interface(std::string const& interface);

/// Listens on each address of `interface` with one socket, or, if it is empty, on all addresses of both families with
/// one socket.
/// @throws UsageError, SystemError.
[[nodiscard]] std::vector<TcpListener> listen_tcp(std::string const& interface);

/// Opens a non-blocking, tuned socket and starts to connect it, from `source` if that is an address.
/// @returns 0, EINPROGRESS, or the errno of an immediate failure.
[[nodiscard]] int start_connect(SocketAddress const& address, SocketAddress const& source,
                                base::FileDescriptor& socket);

/// Sets TCP_NODELAY, and keep-alive probes that detect a vanished host within about 11 s while nothing is in flight.
/// TCP_USER_TIMEOUT stays unset: it would also end connections to a live rank that does not read.
void tune_connection(int socket);

/// Local and remote address of a connection. @throws SystemError.
[[nodiscard]] SocketAddress own_address(int socket);
[[nodiscard]] SocketAddress peer_address(int socket);

/// Process id at the other end of a local socket in this process's namespace; -1 if unknown.
[[nodiscard]] int peer_process(int socket);

/// Clears O_NONBLOCK of `socket`. @throws SystemError.
void set_blocking(int socket);

/// Did the last call on a non-blocking socket fail because it would have to wait (errno)?
[[nodiscard]] bool would_block();

}  // namespace headway::comm
