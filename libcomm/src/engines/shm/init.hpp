#pragma once

#include "engines/notice_socket.hpp"
#include "engines/shm/memory.hpp"
#include "file_descriptor.hpp"
#include "rendezvous/lifeline.hpp"

#include <sched.h>

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

/// Exchanges memory files and doorbells with all peers over their lifelines, which it takes. Entries whose lifeline has
/// no descriptor stay empty. Of each peer's landing segment `part` is mapped. @throws SystemError naming the peer.
std::vector<PeerLink> exchange_links(int rank, std::vector<Lifeline> lifelines, Region const& own, int own_bell,
                                     LandingRange part);

}  // namespace headway::comm::shm
