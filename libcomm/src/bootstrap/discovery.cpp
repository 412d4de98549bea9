// SPDX-License-Identifier: Apache-2.0

// How the ranks find each other: all read rank 0's announcement in the store and send it their addresses, and rank 0
// sends all addresses to all. bootstrap.cpp explains the whole algorithm.

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/host_identity.hpp"
#include "headway/comm/status.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm {

// No rank connects here before this rank is connected to rank 0, so it may block in the store.
void Bootstrap::look_for_rank_0() {
  if (auto found = keys_.find_announcement(std::min(deadline_, Clock::now() + kTick))) adopt(std::move(*found));
}

void Bootstrap::adopt(Announcement announcement) {
  wanted_.erase(0);
  if (members_[0]) {
    members_[0].reset();
    --num_members_;
  }
  use_secret_of(announcement);
  announcement_ = std::move(announcement);
  announced_at_ = Clock::now();
  next_look_ = announced_at_ + kLookAgain;
  connect_with(0, announcement_->rank_address);
}

// Without a configured secret, the ranks use the random one of the announcement. Handshakes in progress keep the secret
// with which they started.
void Bootstrap::use_secret_of(Announcement const& announcement) {
  if (was_given_secret_) return;
  auto self = std::make_shared<HandshakeSelf>(*self_);
  self->secret = announcement.drawn_secret;
  self_ = std::move(self);
}

bool Bootstrap::follow_newer_announcement() {
  auto found = keys_.find_announcement(std::min(deadline_, Clock::now() + kTick));
  if (!found || found->generation() == generation()) return false;
  adopt(std::move(*found));
  return true;
}

// Rank 0 does not answer at its announced address. It may have given up this attempt and posted the reason, or the
// announcement may be old. A posted failure counts if it is younger than this process, and if this process did not take
// part in that attempt.
void Bootstrap::find_failure_of_rank_0() {
  if (StoreKeys::is_concluded(generation(), self_->rank)) return;
  auto posted = keys_.find_failure(generation(), Clock::now() + std::chrono::milliseconds(20));
  if (posted && posted->posted_at >= process_start()) throw BootstrapError(std::move(posted->failure));
}

void Bootstrap::expect_same_host(int peer, RankAddress const& rank_address) const {
  if (options_.transport != Transport::kShm) return;
  if (rank_address.host == own_.host || rank_address.host.empty() || own_.host.empty()) return;
  throw SystemError("transport shm needs all ranks on one host: rank " + std::to_string(self_->rank) + " is on " +
                    own_.host + " and rank " + std::to_string(peer) + " on " + rank_address.host +
                    " (boot id/network namespace)");
}

void Bootstrap::on_rank_address(int peer, Message const& message) {
  std::string& rank_address = rank_addresses_[index(peer)];
  num_rank_addresses_ += rank_address.empty() ? 1 : 0;
  rank_address.assign(reinterpret_cast<char const*>(message.body.data()), message.body.size());
  if (num_rank_addresses_ < self_->size - 1 || std::exchange(has_rank_addresses_, true)) return;
  auto const body = encode_rank_addresses(rank_addresses_);
  for (int each = 1; each < self_->size; ++each) {
    if (members_[index(each)]) send(each, BootstrapMessageKind::kRankAddresses, body);
  }
}

void Bootstrap::on_rank_addresses(Message const& message) {
  has_rank_addresses_ = true;
  auto rank_addresses = decode_rank_addresses(message.body, self_->size);
  for (int peer = 1; peer < self_->rank; ++peer) expect_same_host(peer, rank_addresses[index(peer)]);
  for (int peer = self_->rank - 1; peer > 0; --peer) connect_with(peer, std::move(rank_addresses[index(peer)]));
}
}  // namespace headway::comm
