// SPDX-License-Identifier: Apache-2.0

// Settings (timeout and max_lag), leaving and shrinking of a group. max_lag bounds how many exchanges a rank may run
// ahead of the slowest peer.
//
// deliver() waits until peers have taken what this rank sent. Two ranks that leave could wait for each other for
// ever: each has sent a message that is too large for a slot, and the other will not call receive() any more. So a
// rank in deliver() tells every peer from which it awaits nothing that it refuses further messages. A rank whose
// message a peer refuses gives up one second later (PeerReports::kLeaveTime), because the refusal may have overtaken
// the news that the peer took the message before.
//
// Example: ranks 0 and 1 send each other 1 MB, then leave, and neither has called receive(). Both refuse; both
// deliver() calls return kPeerLost after a second instead of waiting until their timeout.
//
// shrink() may run once, and again only if it threw. It first fails the group, so that no operation of the old one is
// under way, and then agrees with the survivors (shrink.cpp).

#include "group/group_admin_impl.hpp"

#include "group/group_core.hpp"
#include "group/shrink.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace headway::comm {

using ProgressLock = GroupCore::ProgressLock;

namespace {

/// Longest wait for one delivery before deliver() looks at other operations and at refusals.
constexpr std::chrono::milliseconds kDeliverySlice{100};

}  // namespace

void GroupAdminImpl::set_timeout(std::chrono::milliseconds timeout) {
  expects(timeout.count() > 0, "timeout must be above 0");
  ProgressLock const lock(core_);
  core_.set_timeout(std::min(timeout, kLongestTimeout));
}

std::chrono::milliseconds GroupAdminImpl::timeout() const { return core_.timeout(); }

void GroupAdminImpl::set_max_lag(int max_lag, std::optional<int> channel) {
  int const limit = core_.options().max_lag_limit;
  expects(max_lag >= 0 && max_lag <= limit,
          "max_lag " + std::to_string(max_lag) + " is outside 0 to max_lag_limit " + std::to_string(limit));
  if (channel) core_.expect_channel(*channel, "set_max_lag");
  ProgressLock const lock(core_);
  if (channel) {
    core_.channels().all_to_all(*channel).set_max_lag(max_lag);
  } else {
    for (auto const& each : core_.channels().all_to_alls()) each->set_max_lag(max_lag);
  }
  core_.progress();
}

int GroupAdminImpl::max_lag(int channel) {
  core_.expect_channel(channel, "max_lag");
  ProgressLock const lock(core_);
  return core_.channels().all_to_all(channel).max_lag();
}

void GroupAdminImpl::abort(std::string const& reason) {
  ProgressLock const lock(core_);
  core_.fail({StatusCode::kAborted, "rank " + std::to_string(core_.rank()) + " aborted: " + reason}, /*says_so=*/true);
}

Status GroupAdminImpl::deliver(std::chrono::milliseconds timeout) {
  ProgressLock lock(core_);
  if (core_.has_failed()) return {};  // The caller knows of an earlier failure: waits have returned it.
  auto& channels = core_.channels();
  Deadline const deadline = deadline_after(timeout);
  bool const has_sent = channels.find_undelivered() != nullptr;
  for (;;) {
    core_.progress();
    auto const operation = channels.find_undelivered();
    // A failure does not matter if nothing was undelivered: peers that leave first cause one.
    if (core_.has_failed()) return has_sent ? core_.failure() : Status();
    if (operation == nullptr) return {};
    send_refusals();
    auto const now = Clock::now();
    if (int const peer = find_refusal(*operation, now); peer >= 0) {
      return {StatusCode::kPeerLost, "rank " + std::to_string(peer) + " leaves the group and has not received: " +
                                         channels.describe_undelivered(*operation)};
    }
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    auto const slice = std::clamp(left, std::chrono::milliseconds(0), kDeliverySlice);
    if (core_.wait_unobserved(lock, *operation, slice).ok()) continue;
    if (core_.has_failed()) return core_.failure();
    if (Clock::now() < deadline) continue;
    return {StatusCode::kTimeout, "rank " + std::to_string(core_.rank()) + " waited " +
                                      std::to_string(timeout.count()) +
                                      " ms to leave the group: " + channels.describe_undelivered(*operation)};
  }
}

void GroupAdminImpl::send_refusals() {
  for (int peer = 0; peer < core_.size(); ++peer) {
    auto const at = static_cast<std::size_t>(peer);
    if (peer == core_.rank() || refuses_[at] || core_.channels().receives_from(peer)) continue;
    refuses_[at] = true;
    core_.send_refusal(peer);
  }
}

int GroupAdminImpl::find_refusal(OperationState const& operation, Clock::time_point now) const {
  for (int peer = 0; peer < core_.size(); ++peer) {
    if (core_.peer_reports().refuses(peer, now) && core_.channels().sends_to(peer, operation)) return peer;
  }
  return -1;
}

void GroupAdminImpl::leave(std::string const& reason) {
  ProgressLock const lock(core_);
  core_.send_leave();
  core_.fail({StatusCode::kAborted, reason}, /*says_so=*/false);  // The leave message told the peers.
}

ShrunkGroup GroupAdminImpl::shrink(std::span<int const> ranks_to_exclude, std::chrono::milliseconds timeout) {
  expects(timeout.count() > 0, "shrink: timeout must be above 0");
  for (int const peer : ranks_to_exclude) {
    core_.expect_peer(peer, "shrink");
    expects(peer != core_.rank(), "shrink: a rank cannot leave itself out");
  }
  {
    ProgressLock const lock(core_);
    expects(!std::exchange(is_shrunk_, true), "shrink was called before for this group");
  }
  try {
    {
      ProgressLock const lock(core_);
      core_.fail({StatusCode::kAborted, "rank " + std::to_string(core_.rank()) + " leaves the group behind (shrink)"},
                 /*says_so=*/true, base::LogLevel::kInfo);
      core_.survivors().begin(core_.progress_at_failure(), ranks_to_exclude);
    }
    return Shrink(core_, std::min(timeout, kLongestTimeout)).run();
  } catch (...) {
    std::lock_guard const lock(core_.mutex());
    is_shrunk_ = false;
    throw;
  }
}

void GroupAdminImpl::on_failure(FailureCallback callback) {
  ProgressLock const lock(core_);
  core_.on_failure(std::move(callback));
}

void GroupAdminImpl::attach(GroupObserver& observer) {
  ProgressLock const lock(core_);
  core_.attach(observer);
}

void GroupAdminImpl::detach(GroupObserver& observer) noexcept { core_.detach(observer); }

void GroupAdminImpl::send_oob(int peer, std::string_view text) {
  core_.expect_peer(peer, "send_oob");
  expects(text.size() < kMaxOobBytes, "send_oob: a text of " + std::to_string(text.size()) + " bytes is too long");
  ProgressLock const lock(core_);
  core_.send_to_observer(peer, text);
}

}  // namespace headway::comm
