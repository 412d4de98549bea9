#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/group.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm {

/// A connected and authenticated stream socket to one peer. It carries notices, passes descriptors (same host) or
/// frames (tcp), and its end of file is how the death of the peer shows.
struct Lifeline {
  FileDescriptor fd;             ///< Not valid for the own rank.
  bool same_host = false;        ///< An AF_UNIX socket: memory files can be passed and shared.
  std::string address = {};      ///< Numeric, of the peer's host; empty: this one.
  std::string own_address = {};  ///< Numeric, of this host as this connection has it; empty: a local socket.
  int peer_pid = -1;             ///< Process id as this process sees it (SO_PEERCRED); -1 across hosts.
};

/// What all ranks must agree on, verified during the handshake: an error names the field and both values.
struct Agreement {
  int size = 0;
  std::size_t landing_bytes = 0;
  GroupOptions const* options = nullptr;
};

/// The connections of a rank, and a text that is the same at all ranks and that no other attempt to connect has.
struct Introduced {
  std::vector<Lifeline> lifelines;
  std::string generation;
};

/// Such a text for a group without connections.
std::string draw_generation();

/// Connects this rank with all others: rank r connects to each lower rank and accepts from each higher one.
/// Sockets are non-blocking. @throws UsageError or SystemError naming the peer and what differs, or the
/// ranks that did not appear before `deadline`; or what options.while_connecting throws.
Introduced introduce(int rank, Agreement const& agreement, Store& store, Deadline deadline);
/// Tells the other ranks of `generation`, through the store, that this one failed after it was connected: its sockets
/// may belong to an engine by now, or be closed. Best effort.
void post_setup_failure(int rank, GroupOptions const& options, Store& store, std::string const& generation,
                        std::string const& text) noexcept;
/// Why a peer has gone before the engines were ready: what a rank of `generation` posted, if one does within a second.
std::optional<std::string> find_setup_failure(int rank, GroupOptions const& options, Store& store,
                                              std::string const& generation);
/// "rank 1 of group 'x' could not connect: ", for errors.
std::string could_not_connect(int rank, GroupOptions const& options);

/// The connections alone; their sockets are blocking.
std::vector<Lifeline> connect_lifelines(int rank, Agreement const& agreement, Store& store, Deadline deadline);

}  // namespace headway::comm
