// SPDX-License-Identifier: Apache-2.0

// Finds the cause among the reports of a failure. When a rank dies, its peers end one after the other, and each end
// looks like a loss to those that are left. The first rank that saw the loss says so before it ends.
//
// Example: rank 2 is killed. Rank 1 sees the connection end, tells rank 0 "rank 2 is lost", and ends too. Rank 0
// hears that first, then sees the connection to rank 1 end: its error names rank 2, since only the first failure
// counts.
//
// A rank that leaves properly says so in an OOB message. Such a message may overtake data that the rank put before,
// on another path. So the peer counts as gone only when its connection has ended too, which is reported after all its
// data, or one second later (kLeaveTime). Having left is no failure by itself: the group fails only if it still needs
// the rank.

#include "group/peer_reports.hpp"

#include <string>
#include <utility>

namespace headway::comm {

void PeerReports::lost(int peer, std::string_view reason) {
  auto const at = static_cast<std::size_t>(peer);
  if (left_at_[at] != Clock::time_point()) {
    // The loss is reported after all puts of the peer. Its leave message may overtake some of them.
    has_gone_[at] = true;
    any_gone_ = true;
    return;
  }
  if (!failure_.ok()) return;
  failure_ = {StatusCode::kPeerLost, "rank " + std::to_string(peer) + " is lost (" + std::string(reason) + ")"};
  failure_is_ours_ = true;
}

void PeerReports::failed_elsewhere(Status failure) {
  if (!failure_.ok()) return;
  failure_ = std::move(failure);
  failure_is_ours_ = false;
}

void PeerReports::expire(Clock::time_point now) {
  for (std::size_t peer = 0; peer < left_at_.size(); ++peer) {
    if (left_at_[peer] == Clock::time_point() || has_gone_[peer] || now - left_at_[peer] < kLeaveTime) continue;
    has_gone_[peer] = true;
    any_gone_ = true;
  }
}

bool PeerReports::refuses(int peer, Clock::time_point now) const {
  auto const refused_at = refused_at_[static_cast<std::size_t>(peer)];
  // A refusal may overtake the OOB message that the peer has taken a payload.
  return refused_at != Clock::time_point() && now - refused_at >= kLeaveTime;
}

}  // namespace headway::comm
