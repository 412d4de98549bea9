// Shrink: the remaining ranks of a failed group make a new group.
//
// Idea: three steps, over the connections of the old group, since the store may have died with the rank that ran it.
//   1. Fail the old group, so that no operation of it goes on, and note which operations this rank completed.
//   2. agree(): exchange claims (survivors.cpp) until all members name the same ranks. Notices may get lost, so a claim
//      is sent again every 200 ms. A member that is silent for `timeout` is dropped. No agreement after twice the
//      timeout is an error.
//   3. connect_members(): Group::connect() among the members, with MemberStore in place of the store.
// If step 3 fails because one more rank was lost, the members agree again, with the next attempt number.
//
// Example: rank 3 of 4 dies. Ranks 0, 1, 2 agree on {0, 1, 2} and become ranks 0, 1, 2 of "NAME/shrunk".
//
// Invariants: the new group has memory and connections of its own, so late writes of a lost rank cannot reach it.
//   Values of the MemberStore belong to one attempt. A rank that another one dropped gets kAborted in listen().
//   Once a member has its new group, the others try no further attempt.
// Complexity: see survivors.cpp; at most `size` attempts after the first.
// Source: docs/decisions/shrink.md.

#include "group_impl.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace headway::comm {

namespace {

/// Longest sleep between two looks at the notices of other ranks.
constexpr std::chrono::milliseconds kLongestNap{10};
/// Notices may get lost, so an unanswered claim is sent again after this time.
constexpr std::chrono::milliseconds kSayAgain{200};

}  // namespace

/// Store for the members of one attempt: notices over the connections of the old group.
class GroupImpl::MemberStore final : public Store {
 public:
  MemberStore(GroupImpl& group, std::uint32_t attempt) : group_(group), attempt_(attempt) {}

  void set(std::string const& key, std::string_view value) override {
    Visit const visit(group_);
    group_.tell_peers(group_.survivors_.value_notice(attempt_, key, value));
  }

  std::string get(std::string const& key, std::chrono::milliseconds timeout) override {
    Deadline const deadline = deadline_after(timeout);
    Visit visit(group_);
    for (;;) {
      if (auto value = group_.survivors_.value(attempt_, key)) return *value;
      if (group_.survivors_.attempt() != attempt_ || !group_.survivors_.has_agreed()) {
        throw SystemError("one more rank was lost");
      }
      if (Clock::now() >= deadline) {
        throw SystemError("no rank said '" + key + "' within " + std::to_string(timeout.count()) + " ms");
      }
      group_.listen(visit);
    }
  }

 private:
  GroupImpl& group_;
  std::uint32_t attempt_;
};

ShrunkGroup GroupImpl::shrink(std::span<int const> ranks_to_exclude, std::chrono::milliseconds timeout) {
  expects(timeout.count() > 0, "shrink: timeout must be above 0");
  timeout = std::min(timeout, kLongestTimeout);
  for (int const peer : ranks_to_exclude) {
    expect_peer(peer, "shrink");
    expects(peer != rank_, "shrink: a rank cannot leave itself out");
  }
  {
    Visit const visit(*this);
    expects(!std::exchange(is_shrunk_, true), "shrink was called before for this group");
    fail({StatusCode::kAborted, "rank " + std::to_string(rank_) + " leaves the group behind (shrink)"}, true);
    survivors_.begin(progress_at_failure_, ranks_to_exclude);
  }
  try {
    for (;;) {
      agree(timeout);
      if (auto shrunk = connect_members(timeout)) return std::move(*shrunk);
    }
  } catch (...) {
    std::lock_guard const lock(mutex_);
    is_shrunk_ = false;
    throw;
  }
}

void GroupImpl::listen(Visit& visit) {
  visit.lock().unlock();
  wire_.endpoint().sleep(Clock::now() + kLongestNap);
  visit.lock().lock();
  progress();
  if (auto const peer = survivors_.excluded_by()) {
    throw OperationError({StatusCode::kAborted, "rank " + std::to_string(*peer) + " and others go on without rank " +
                                                    std::to_string(rank_) + ", which was silent or left out"});
  }
}

void GroupImpl::agree(std::chrono::milliseconds timeout) {
  Deadline const silent_until = Clock::now() + timeout;
  Deadline const agreed_until = silent_until + timeout;
  auto say_again_at = Clock::now() + kSayAgain;
  for (Visit visit(*this);; listen(visit)) {
    auto const now = Clock::now();
    if (now >= silent_until) survivors_.exclude_silent();
    auto news = survivors_.take_news();
    if (!news && now >= say_again_at) news = survivors_.claim_notice();
    if (news) {
      tell_peers(*news);
      say_again_at = now + kSayAgain;
    }
    if (survivors_.has_agreed()) return;
    if (now >= agreed_until) {
      throw OperationError(
          {StatusCode::kTimeout, "rank " + std::to_string(rank_) + " waited " + std::to_string(2 * timeout.count()) +
                                     " ms for " + survivors_.who_is_awaited() + " to say the same about who is left"});
    }
  }
}

std::optional<ShrunkGroup> GroupImpl::connect_members(std::chrono::milliseconds timeout) {
  ShrunkGroup shrunk;
  std::uint32_t attempt = 0;
  std::vector<int> max_lags;
  {
    Visit const visit(*this);
    auto progress = survivors_.common_progress();
    attempt = survivors_.attempt();
    shrunk.ranks = survivors_.members();
    shrunk.all_to_alls = std::move(progress.all_to_alls);
    shrunk.collectives = progress.collectives;
    for (auto const& ring : rings_) max_lags.push_back(ring->max_lag());
  }
  auto options = options_;
  options.name += "/shrunk";
  options.connect_timeout = timeout;
  int const new_rank = static_cast<int>(std::ranges::find(shrunk.ranks, rank_) - shrunk.ranks.begin());
  MemberStore store(*this, attempt);
  try {
    shrunk.group = Group::connect(new_rank, static_cast<int>(shrunk.ranks.size()), store, std::move(options));
  } catch (SystemError const&) {
    Visit visit(*this);
    listen(visit);  // The loss that made connecting fail may only show now.
    // After the first, each attempt needs one more lost rank. A member that has its new group waits for nobody.
    bool const is_last = survivors_.is_anyone_done() || attempt >= static_cast<std::uint32_t>(size_);
    if (is_last) throw;
    survivors_.give_up(attempt);
    return std::nullopt;
  }
  for (int channel = 0; channel < options_.num_channels; ++channel) {
    shrunk.group->set_max_lag(max_lags[static_cast<std::size_t>(channel)], channel);
  }
  Visit const visit(*this);
  tell_peers(survivors_.done_notice());
  return shrunk;
}

}  // namespace headway::comm
