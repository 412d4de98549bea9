#pragma once

#include "file_descriptor.hpp"
#include "rendezvous/socket_address.hpp"

#include <string>
#include <vector>

namespace headway::comm {

/// Listens on `address`, non-blocking. @throws SystemError naming the address.
[[nodiscard]] FileDescriptor listen_on(SocketAddress const& address);

/// A socket that listens for TCP, and the addresses under which others reach it.
struct TcpListener {
  FileDescriptor socket;
  std::vector<SocketAddress> reachable_at;
};

/// Addresses of this host's interface named `interface`, or the address that `interface` itself is; with port 0.
/// @throws UsageError if `interface` is neither an interface that is up nor an address of this host; it names those
/// that there are.
[[nodiscard]] std::vector<InterfaceAddress> addresses_of_interface(std::string const& interface);

/// Listens on the addresses of `interface`, one socket for each, or on all addresses of both families with one socket
/// if it is empty. @throws UsageError, SystemError.
[[nodiscard]] std::vector<TcpListener> listen_tcp(std::string const& interface);

/// Opens a non-blocking, tuned socket and starts to connect it, from `source` if that is an address.
/// @returns 0, EINPROGRESS, or why it failed at once.
[[nodiscard]] int start_connect(SocketAddress const& address, SocketAddress const& source, FileDescriptor& socket);

/// For a TCP socket: no delay for small packets, and probes by which a vanished host shows within
/// about 11 s while nothing is in flight. TCP_USER_TIMEOUT is not set: it would also end connections to a rank that
/// lives but does not read.
void tune_connection(int socket);

/// This end's address of a connection, and the other end's. @throws SystemError.
[[nodiscard]] SocketAddress own_address(int socket);
[[nodiscard]] SocketAddress peer_address(int socket);

/// Process at the other end of a local socket, as this process sees it; -1 if it does not.
[[nodiscard]] int peer_process(int socket);

void set_blocking(int socket);

}  // namespace headway::comm
