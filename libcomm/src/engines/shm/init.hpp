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

/// What a rank holds of one peer on its host.
struct PeerLink {
  NoticeSocket socket;
  FileDescriptor bell;     ///< eventfd that wakes the peer.
  FileDescriptor pidfd;    ///< Readable when the peer's process ends; invalid where the kernel has none.
  Region region;           ///< The peer's memory file.
  int pid = -1;            ///< As this process sees it.
  bool can_get = false;    ///< process_vm_readv works.
  cpu_set_t cores{};       ///< That the peer may run on.
  bool has_ended = false;  ///< Its process, when last looked.
  bool lost = false;
};

/// Memory and doorbell that a rank gives its peers, and the part that it maps of theirs.
struct LinkSettings {
  Region const& own;
  int own_bell;
  LandingRange part;  ///< Of each peer's landing segment: this rank writes there.
  bool allow_get;     ///< Whether ranks may read each other's user memory.
};

/// Takes the lifelines. Entries without a descriptor stay empty.
[[nodiscard]] std::vector<PeerLink> take_links(std::vector<Lifeline> lifelines);

/// Lets the peers of `links` read this process's memory.
[[nodiscard]] ReadPermission permit_reading(std::span<PeerLink const> links);

/// Exchanges memory files and doorbells with the peers of `links`. @throws SystemError naming the peer, or the limit of
/// open files; and what patience.while_waiting() throws.
void exchange_links(int rank, std::span<PeerLink> links, LinkSettings const& settings, SetupPatience const& patience);

}  // namespace headway::comm::shm
