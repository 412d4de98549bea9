#pragma once

#include "engines/lifeline_messages.hpp"
#include "engines/notice_socket.hpp"
#include "engines/shm/memory.hpp"
#include "engines/shm/read_permission.hpp"
#include "file_descriptor.hpp"
#include "rendezvous/lifeline.hpp"

#include <sched.h>

#include <span>
#include <vector>

namespace headway::comm::shm {

/// Resources that a rank holds for one peer on its host.
struct PeerLink {
  NoticeSocket socket;
  FileDescriptor bell;     ///< eventfd that wakes the peer.
  FileDescriptor pidfd;    ///< Readable when the peer's process ends. Invalid if the kernel has no pidfd.
  Region region;           ///< The peer's memory file.
  int pid = -1;            ///< Process id in this process's namespace; -1 if unknown.
  bool can_get = false;    ///< True if process_vm_readv works on the peer.
  cpu_set_t cores{};       ///< Cores that the peer may run on.
  bool has_ended = false;  ///< True if the peer's process had ended at the last check.
  bool lost = false;
};

/// Memory and doorbell that a rank shares with its peers, and the range that it maps of theirs.
struct LinkSettings {
  Region const& own;
  int own_bell;
  LandingRange part;  ///< Range of each peer's landing segment that this rank writes.
  bool allow_get;     ///< True if ranks may read each other's user memory.
};

/// Moves the lifelines into links. Entries without a descriptor give empty links.
[[nodiscard]] std::vector<PeerLink> take_links(std::vector<Lifeline> lifelines);

/// Lets the peers of `links` read this process's memory.
[[nodiscard]] ReadPermission permit_reading(std::span<PeerLink const> links);

/// Exchanges memory files and doorbells with the peers of `links`.
/// @throws SystemError naming the peer, or the limit of open files; exceptions of patience.while_waiting() pass
/// through.
void exchange_links(int rank, std::span<PeerLink> links, LinkSettings const& settings, SetupPatience const& patience);

}  // namespace headway::comm::shm
