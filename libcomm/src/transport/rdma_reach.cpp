// SPDX-License-Identifier: Apache-2.0

// Exchange of RDMA address families, before transports are chosen. Every rank sends to all before it reads, so no two
// ranks wait for each other: the messages of 16 bytes fit every socket buffer.

#include "transport/rdma_reach.hpp"

#include "transport/connection_setup.hpp"

#include <cstddef>
#include <span>

namespace headway::comm {

std::vector<RdmaReach> exchange_rdma_reach(std::vector<ControlSocket> const& control_sockets, RdmaReach const& own,
                                           SetupPatience const& patience) {
  auto const is_remote = [](ControlSocket const& each) { return each.fd.valid() && !each.same_host; };
  for (std::size_t peer = 0; peer < control_sockets.size(); ++peer) {
    if (!is_remote(control_sockets[peer])) continue;
    send_all(control_sockets[peer].fd.get(), std::as_bytes(std::span(&own, 1)), static_cast<int>(peer), patience);
  }
  std::vector<RdmaReach> reaches(control_sockets.size());
  for (std::size_t peer = 0; peer < control_sockets.size(); ++peer) {
    if (!is_remote(control_sockets[peer])) continue;
    receive_all(control_sockets[peer].fd.get(), std::as_writable_bytes(std::span(&reaches[peer], 1)),
                static_cast<int>(peer), patience);
  }
  return reaches;
}

}  // namespace headway::comm
