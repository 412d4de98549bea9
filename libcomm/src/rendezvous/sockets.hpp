#pragma once

#include "file_descriptor.hpp"
#include "rendezvous/socket_address.hpp"

#include <string>
#include <vector>

namespace headway::comm {

/// Listens on `address`, non-blocking. @throws SystemError naming the address.
[[nodiscard]] FileDescriptor listen_on(SocketAddress const& address);

/// Sockets that listen for TCP, on one port for each, and the addresses under which others reach them.
struct TcpListener {
  FileDescriptor socket;
  std::vector<SocketAddress> reachable_at;
};

/// Listens on `interface_address` (a numeric IPv4 or IPv6 address), or on all addresses of both families if it is
/// empty.
/// @throws UsageError if it is not numeric, SystemError if it is not this host's.
[[nodiscard]] TcpListener listen_tcp(std::string const& interface_address);

/// Opens a non-blocking, tuned socket and starts to connect it. @returns 0, EINPROGRESS, or why it failed at once.
[[nodiscard]] int start_connect(SocketAddress const& address, FileDescriptor& socket);

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
