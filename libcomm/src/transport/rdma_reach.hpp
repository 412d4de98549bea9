// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/control_socket.hpp"
#include "transport/connection_setup.hpp"

#include <cstdint>
#include <vector>

namespace headway::comm {

/// RDMA address family of a rank. Ranks of different hosts exchange it before transports are chosen, even if the build
/// or the host has no RDMA.
struct RdmaReach {
  enum class Kind : std::uint32_t { kNone, kInfiniBand, kRoceIpv4, kRoceIpv6, kRoceLinkLocal };

  Kind kind = Kind::kNone;
  std::uint32_t unused = 0;         ///< Explicit padding: the struct is sent as bytes.
  std::uint64_t subnet_prefix = 0;  ///< InfiniBand only: both ranks must be in one subnet.

  /// True if two ranks with these addresses can reach each other, judged by addresses alone.
  [[nodiscard]] bool reaches(RdmaReach const& peer) const {
    if (kind == Kind::kNone || kind != peer.kind) return false;
    return kind != Kind::kInfiniBand || subnet_prefix == peer.subnet_prefix;
  }
};

/// Sends `own` to the ranks of other hosts and receives theirs.
/// @returns (size) entries, kNone for ranks of this host. @throws SystemError naming the peer.
std::vector<RdmaReach> exchange_rdma_reach(std::vector<ControlSocket> const& control_sockets, RdmaReach const& own,
                                           SetupPatience const& patience = {});

}  // namespace headway::comm
