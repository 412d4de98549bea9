// SPDX-License-Identifier: Apache-2.0

// Shrink: the remaining ranks of a failed group make a new group.
//
// Idea: three steps, over the connections of the old group, since the store may have died with the rank that ran it.
//   1. Fail the old group, so that no operation of it goes on, and note which operations this rank completed.
//   2. agree(): exchange claims, which say who is left (survivors.cpp), until all members name the same ranks. OOB
//      messages may get lost, so a claim is sent again every 200 ms. A member that is silent for `timeout` is dropped.
//      No agreement after twice the timeout is an error.
//   3. connect_members(): Group::connect() among the members, with MemberStore in place of the store.
// If step 3 fails because one more rank was lost, the members agree again, with the next attempt number.
//
// Example: rank 3 of 4 dies. Ranks 0, 1, 2 agree on {0, 1, 2} and become ranks 0, 1, 2 of "NAME/shrunk".
//
// Invariants: the new group has memory and connections of its own, so late writes of a lost rank cannot reach it.
//   Values of the MemberStore belong to one attempt. A rank that another one dropped gets kAborted in listen().
//   Once a member has its new group, the others try no further attempt.
// Complexity: see survivors.cpp; at most `size` attempts after the first.
// Source: docs/design/shrink.md.

#include "group/shrink.hpp"

#include "headway/base/log.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace headway::comm {

namespace {

/// Longest sleep between two looks at the OOB messages of other ranks.
constexpr std::chrono::milliseconds kLongestNap{10};
/// OOB messages may get lost, so an unanswered claim is sent again after this time.
constexpr std::chrono::milliseconds kSayAgain{200};

}  // namespace

/// Store for the members of one attempt: OOB messages over the connections of the old group.
class Shrink::MemberStore final : public Store {
 public:
  MemberStore(Shrink& shrink, std::uint32_t attempt) : shrink_(shrink), core_(shrink.core_), attempt_(attempt) {}

  void set(std::string const& key, std::string_view value) override {
    ProgressLock const lock(core_);
    core_.send_oob_to_peers(core_.survivors().value_oob(attempt_, key, value));
  }

  std::string get(std::string const& key, std::chrono::milliseconds timeout) override {
    Deadline const deadline = deadline_after(timeout);
    ProgressLock lock(core_);
    for (;;) {
      if (auto value = core_.survivors().value(attempt_, key)) return *value;
      if (core_.survivors().attempt() != attempt_ || !core_.survivors().has_agreed()) {
        throw SystemError("one more rank was lost");
      }
      if (Clock::now() >= deadline) {
        throw SystemError("no rank said '" + key + "' within " + std::to_string(timeout.count()) + " ms");
      }
      shrink_.listen(lock);
    }
  }

 private:
  Shrink& shrink_;
  GroupCore& core_;
  std::uint32_t attempt_;
};

ShrunkGroup Shrink::run() {
  for (;;) {
    agree();
    if (auto shrunk = connect_members()) return std::move(*shrunk);
  }
}

void Shrink::listen(ProgressLock& lock) {
  lock.mutex_lock().unlock();
  core_.context().endpoint().sleep(Clock::now() + kLongestNap);
  lock.mutex_lock().lock();
  core_.progress();
  if (auto const peer = core_.survivors().excluded_by()) {
    throw OperationError({StatusCode::kAborted, "rank " + std::to_string(*peer) + " and others go on without rank " +
                                                    std::to_string(core_.rank()) + ", which was silent or left out"});
  }
}

void Shrink::agree() {
  Deadline const silent_until = Clock::now() + timeout_;
  Deadline const agreed_until = silent_until + timeout_;
  auto say_again_at = Clock::now() + kSayAgain;
  for (ProgressLock lock(core_);; listen(lock)) {
    auto const now = Clock::now();
    if (now >= silent_until) core_.survivors().exclude_silent();
    auto news = core_.survivors().take_news();
    if (!news && now >= say_again_at) news = core_.survivors().claim_oob();
    if (news) {
      core_.send_oob_to_peers(*news);
      say_again_at = now + kSayAgain;
    }
    if (core_.survivors().has_agreed()) return;
    if (now >= agreed_until) {
      throw OperationError({StatusCode::kTimeout, "rank " + std::to_string(core_.rank()) + " waited " +
                                                      std::to_string(2 * timeout_.count()) + " ms for " +
                                                      core_.survivors().who_is_awaited() +
                                                      " to say the same about who is left"});
    }
  }
}

std::optional<ShrunkGroup> Shrink::connect_members() {
  ShrunkGroup shrunk;
  std::uint32_t attempt = 0;
  std::vector<int> max_lags;
  {
    ProgressLock const lock(core_);
    auto progress = core_.survivors().common_progress();
    attempt = core_.survivors().attempt();
    shrunk.ranks = core_.survivors().members();
    shrunk.all_to_alls = std::move(progress.all_to_alls);
    shrunk.collectives = progress.collectives;
    for (auto const& channel : core_.channels().all_to_alls()) max_lags.push_back(channel->max_lag());
  }
  auto options = core_.options();
  options.name += "/shrunk";
  options.connect_timeout = timeout_;
  int const new_rank = static_cast<int>(std::ranges::find(shrunk.ranks, core_.rank()) - shrunk.ranks.begin());
  MemberStore store(*this, attempt);
  try {
    shrunk.group = Group::connect(new_rank, static_cast<int>(shrunk.ranks.size()), store, std::move(options));
  } catch (SystemError const&) {
    ProgressLock lock(core_);
    listen(lock);  // The loss that made connecting fail may only show now.
    // After the first, each attempt needs one more lost rank. A member that has its new group waits for nobody.
    bool const is_last = core_.survivors().is_anyone_done() || attempt >= static_cast<std::uint32_t>(core_.size());
    if (is_last) throw;
    core_.survivors().give_up(attempt);
    return std::nullopt;
  }
  for (int channel = 0; channel < core_.options().num_channels; ++channel) {
    shrunk.group->admin().set_max_lag(max_lags[static_cast<std::size_t>(channel)], channel);
  }
  base::log(base::LogLevel::kWarning, "group", core_.rank(),
            "group '" + core_.options().name + "' goes on with " + std::to_string(shrunk.ranks.size()) + " of " +
                std::to_string(core_.size()) + " ranks, here as rank " + std::to_string(new_rank));
  ProgressLock const lock(core_);
  core_.send_oob_to_peers(core_.survivors().done_oob());
  return shrunk;
}

}  // namespace headway::comm
