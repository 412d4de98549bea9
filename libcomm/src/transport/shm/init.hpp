// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/control_socket.hpp"
#include "headway/base/file_descriptor.hpp"
#include "transport/connection_setup.hpp"
#include "transport/oob_socket.hpp"
#include "transport/shm/memory.hpp"
#include "transport/shm/read_permission.hpp"

#include <sched.h>

#include <span>
#include <vector>

namespace headway::comm::shm {

/// Resources that a rank holds for one peer on its host.
struct PeerLink {
  OobSocket socket;
  base::FileDescriptor bell;   ///< eventfd that wakes the peer.
  base::FileDescriptor pidfd;  ///< Readable when the peer's process ends. Invalid if the kernel has no pidfd.
  Region region;               ///< The peer's memory file.
  int pid = -1;                ///< Process id in this process's namespace; -1 if unknown.
  bool can_get = false;        ///< True if process_vm_readv works on the peer.
  cpu_set_t cores{};           ///< Cores that the peer may run on.
  bool has_ended = false;      ///< True if the peer's process had ended at the last check.
  bool lost = false;
};

/// Memory and doorbell that a rank shares with its peers, and the range that it maps of theirs.
struct LinkSettings {
  Region const& own;
  int own_bell;
  ReceiveRange part;  ///< Range of each peer's receive buffer that this rank writes.
  bool allow_get;     ///< True if ranks may read each other's user memory.
};

/// Moves the control sockets into links. Entries without a descriptor give empty links.
[[nodiscard]] std::vector<PeerLink> take_links(std::vector<ControlSocket> control_sockets);

/// Lets the peers of `links` read this process's memory.
[[nodiscard]] ReadPermission permit_reading(std::span<PeerLink const> links);

/// Exchanges memory files and doorbells with the peers of `links`.
/// @throws SystemError naming the peer, or the limit of open files; exceptions of patience.while_waiting() pass
/// through.
void exchange_links(int rank, std::span<PeerLink> links, LinkSettings const& settings, SetupPatience const& patience);

}  // namespace headway::comm::shm
