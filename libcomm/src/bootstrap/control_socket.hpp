// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_options.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm {

/// Connected and authenticated stream socket to one peer. It carries OOB messages, passes descriptors (same host) or
/// frames (tcp). Its end of file means that the peer is dead.
struct ControlSocket {
  base::FileDescriptor fd;       ///< Invalid for the own rank.
  bool same_host = false;        ///< True for an AF_UNIX socket: memory files can be passed and shared.
  std::string address = {};      ///< Numeric address of the peer's host; empty if it is this host.
  std::string own_address = {};  ///< Numeric address of this end of the connection; empty for a local socket.
  int peer_pid = -1;             ///< Process id in this process's namespace (SO_PEERCRED); -1 across hosts.
};

/// Settings that all ranks must share. The handshake compares them; its error names the field and both values.
struct Agreement {
  int size = 0;
  std::size_t receive_buffer_bytes = 0;  ///< Size of the memory into which peers write, per rank.
  GroupOptions const* options = nullptr;
};

/// The connections of a rank, and the generation of this attempt to connect.
struct BootstrapResult {
  std::vector<ControlSocket> control_sockets;  ///< By rank.
  std::string generation;                      ///< Text that is equal on all ranks and unique to the attempt.
};

/// Draws a generation for a group that makes no connections.
std::string draw_generation();

/// Connects this rank with all others: rank r connects to each lower rank and accepts from each higher one. Sockets are
/// non-blocking.
/// @throws UsageError or SystemError naming the peer and the difference, or the ranks that did not appear before
/// `deadline`; exceptions of options.while_connecting pass through.
BootstrapResult run_bootstrap(int rank, Agreement const& agreement, Store& store, Deadline deadline);
/// Tells the other ranks of `generation`, through the store, that this one failed after it was connected. Its sockets
/// may already belong to a transport or be closed. Best effort.
void post_setup_failure(int rank, GroupOptions const& options, Store& store, std::string const& generation,
                        std::string const& text) noexcept;
/// Waits at most a second for a failure that a rank of `generation` posted. It explains why a peer left before the
/// transports were ready.
std::optional<std::string> find_setup_failure(int rank, GroupOptions const& options, Store& store,
                                              std::string const& generation);
/// Prefix of errors: "rank 1 of group 'x' could not connect: ".
std::string could_not_connect(int rank, GroupOptions const& options);

/// Like run_bootstrap(), but returns the connections alone, with blocking sockets.
std::vector<ControlSocket> connect_control_sockets(int rank, Agreement const& agreement, Store& store,
                                                   Deadline deadline);

}  // namespace headway::comm
