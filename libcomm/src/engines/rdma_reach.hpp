#pragma once

#include "engines/lifeline_messages.hpp"
#include "rendezvous/lifeline.hpp"

#include <cstdint>
#include <vector>

namespace headway::comm {

/// How a rank can be reached by RDMA. Ranks of different hosts tell each other before engines are chosen, also where
/// the build or the host has no RDMA.
struct RdmaReach {
  enum class Kind : std::uint32_t { kNone, kInfiniBand, kRoceIpv4, kRoceIpv6, kRoceLinkLocal };

  Kind kind = Kind::kNone;
  std::uint32_t unused = 0;
  std::uint64_t subnet_prefix = 0;  ///< InfiniBand: both must be in one subnet.

  /// Whether two ranks with these addresses reach each other, as far as addresses tell.
  [[nodiscard]] bool reaches(RdmaReach const& peer) const {
    if (kind == Kind::kNone || kind != peer.kind) return false;
    return kind != Kind::kInfiniBand || subnet_prefix == peer.subnet_prefix;
  }
};

/// Tells `own` to the ranks of other hosts and learns theirs.
/// @returns one entry for each rank; of ranks on this host kNone. @throws SystemError naming the peer.
std::vector<RdmaReach> exchange_rdma_reach(std::vector<Lifeline> const& lifelines, RdmaReach const& own,
                                           SetupPatience const& patience = {});

}  // namespace headway::comm
