#pragma once

#include "headway/comm/group.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace headway::comm {

/// A connected and authenticated stream socket to one peer. It carries notices, passes descriptors (same host) or
/// frames (tcp), and its end of file is how the death of the peer shows.
struct Lifeline {
  int fd = -1;             ///< Owned by whoever takes the vector; -1 for the own rank.
  bool same_host = false;  ///< An AF_UNIX socket: memory files can be passed and shared.
  std::string address;     ///< Numeric, of the peer's host; empty: this one.
  int peer_pid = -1;       ///< Process id as this process sees it (SO_PEERCRED); -1 across hosts.
};

/// What all ranks must agree on, verified during the handshake: an error names the field and both values.
struct Agreement {
  int size = 0;
  std::size_t landing_bytes = 0;
  GroupOptions const* options = nullptr;
};

/// Connects this rank with all others: rank r connects to each lower rank and accepts from each higher one.
/// Sockets are blocking when returned. @throws UsageError or SystemError naming the peer and what differs, or the
/// ranks that did not appear before `deadline`.
std::vector<Lifeline> connect_lifelines(int rank, Agreement const& agreement, Store& store, Deadline deadline);

}  // namespace headway::comm
