// Failure of a group: how it learns that peers failed or left, how it fails itself, and how a rank leaves.

#include "group_impl.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm {

namespace {

constexpr char kLossPrefix = '\x02';       ///< First byte of a notice that passes on the loss of a rank.
constexpr char kCompanionPrefix = '\x06';  ///< First byte of a notice between companions.
/// After this time, all that a rank put before its goodbye has arrived, and the cause of a symptom is known.
constexpr std::chrono::seconds kLeaveTime{1};
/// Time between two looks at the deadlines of all operations, of which there may be many.
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{100};
/// Longest time that a receive may be stuck behind messages without a posted receive. Half of the group's timeout if
/// that is shorter, since this error says more than a timeout.
constexpr std::chrono::milliseconds kStallPatience{30'000};
/// Longest wait for one delivery before deliver() looks at other operations and at refusals.
constexpr std::chrono::milliseconds kDeliverySlice{100};

}  // namespace

Status GroupImpl::health() {
  Visit visit(*this);
  progress();
  return failure_;
}

void GroupImpl::abort(std::string const& reason) {
  Visit visit(*this);
  fail({StatusCode::kAborted, "rank " + std::to_string(rank_) + " aborted: " + reason}, true);
}

Status GroupImpl::deliver(std::chrono::milliseconds timeout) {
  Visit visit(*this);
  if (failed_) return {};
  Deadline const deadline = deadline_after(timeout);
  bool const has_sent = find_undelivered() != nullptr;
  for (;;) {
    progress();
    auto const operation = find_undelivered();
    // A failure does not matter to delivery if this rank only receives: peers that leave first cause one.
    if (failed_) return has_sent ? failure_ : Status();
    if (operation == nullptr) return {};
    say_what_is_not_taken();
    auto const now = Clock::now();
    if (int const peer = find_refusal(*operation, now); peer >= 0) {
      return {StatusCode::kPeerLost, "rank " + std::to_string(peer) +
                                         " leaves the group and has not received: " + describe_undelivered(*operation)};
    }
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    if (wait_untimed(visit, *operation, std::clamp(left, std::chrono::milliseconds(0), kDeliverySlice)).ok()) continue;
    if (failed_) return failure_;
    if (Clock::now() < deadline) continue;
    return {StatusCode::kTimeout, "rank " + std::to_string(rank_) + " waited " + std::to_string(timeout.count()) +
                                      " ms to leave the group: " + describe_undelivered(*operation)};
  }
}

std::shared_ptr<OperationState> GroupImpl::find_undelivered() const {
  auto const receiving = pair_.receiving_operations();
  auto const lacks_nothing = [&](OperationState const& operation) {
    if (receiving.contains(&operation)) return false;
    for (int peer = 0; peer < size_; ++peer) {
      if (transfers_.takes_from(peer, operation)) return false;
    }
    return true;
  };
  auto const found =
      std::ranges::find_if(pair_operations_, [&](auto const& operation) { return lacks_nothing(*operation); });
  return found == pair_operations_.end() ? nullptr : *found;
}

std::string GroupImpl::describe_undelivered(OperationState const& operation) const {
  auto const name = std::string(verb_name(operation.verb())) + " ";
  if (auto text = transfers_.describe_missing(operation); !text.empty()) return name + text;
  for (int peer = 0; peer < size_; ++peer) {
    if (!pair_.has_queued(peer, operation) && !pair_.has_unflushed(peer, operation)) continue;
    return name + "waits for rank " + std::to_string(peer) + " to take messages";
  }
  return name + "is not delivered";
}

void GroupImpl::say_what_is_not_taken() {
  for (int peer = 0; peer < size_; ++peer) {
    auto const at = static_cast<std::size_t>(peer);
    if (peer == rank_ || refuses_[at] || pair_.expects_from(peer) || transfers_.takes_from(peer)) continue;
    refuses_[at] = true;
    wire_.endpoint().send_notice(peer, kRefusal);
  }
}

int GroupImpl::find_refusal(OperationState const& operation, Clock::time_point now) const {
  for (int peer = 0; peer < size_; ++peer) {
    auto const refused_at = refused_at_[static_cast<std::size_t>(peer)];
    // A refusal may overtake the notice that the peer has taken a payload.
    if (refused_at == Clock::time_point() || now - refused_at < kLeaveTime) continue;
    if (transfers_.gives_to(peer, operation) || pair_.has_queued(peer, operation)) return peer;
  }
  return -1;
}

void GroupImpl::leave(std::string const& reason) {
  Visit visit(*this);
  say_goodbye();
  fail({StatusCode::kAborted, reason}, false);
}

void GroupImpl::say_goodbye() {
  if (!std::exchange(has_left_, true)) tell_peers(kGoodbye);
  on_failure_ = nullptr;  // Leaving is not a failure.
}

void GroupImpl::on_failure(FailureCallback callback) {
  Visit visit(*this);
  on_failure_ = std::move(callback);
  if (failed_ && on_failure_) report_failure();
}

void GroupImpl::attach(GroupCompanion& companion) {
  Visit visit(*this);
  throw_if_failed();
  expects(companion_ == nullptr, "this group has a device group already");
  companion_ = &companion;
  for (auto const& [peer, text] : std::exchange(unheard_, {})) hear(peer, text);
  if (progress_thread_) progress_thread_->notify(std::chrono::milliseconds(0));
}

void GroupImpl::detach(GroupCompanion& companion) noexcept {
  std::lock_guard const lock(mutex_);
  if (companion_ != &companion) return;
  companion_ = nullptr;
}

void GroupImpl::tell(int peer, std::string_view text) {
  expect_peer(peer, "tell");
  expects(text.size() < kMaxNoticeBytes, "tell: a text of " + std::to_string(text.size()) + " bytes is too long");
  Visit visit(*this);
  throw_if_failed();
  wire_.endpoint().send_notice(peer, kCompanionPrefix + std::string(text));
}

void GroupImpl::hear(int peer, std::string_view text) noexcept {
  try {
    if (auto* const companion = companion_.load()) return companion->heard(peer, text);
    unheard_.emplace_back(peer, text);
  } catch (std::exception const& error) {
    wire_.report_error(error.what());
  }
}

void GroupImpl::throw_if_failed() const {
  if (failed_) throw OperationError(failure_);
}

void GroupImpl::notice(int peer, std::string_view text) {
  if (text == kGoodbye) {
    left_at_[static_cast<std::size_t>(peer)] = Clock::now();
    return;
  }
  if (text == kRefusal) {
    refused_at_[static_cast<std::size_t>(peer)] = Clock::now();
    return;
  }
  if (text.starts_with(kCompanionPrefix)) return hear(peer, text.substr(1));
  bool const is_of_survivor = Survivors::is_said_in(text);
  if (is_of_survivor) survivors_.notice(peer, text);
  if (!pending_failure_.ok()) return;
  if (is_of_survivor) {
    pending_failure_ = {StatusCode::kAborted, "rank " + std::to_string(peer) + " leaves the group behind (shrink)"};
    pending_failure_is_ours_ = false;
    return;
  }
  bool const of_loss = text.starts_with(kLossPrefix);
  if (of_loss) text.remove_prefix(1);
  pending_failure_ = {of_loss ? StatusCode::kPeerLost : StatusCode::kAborted, std::string(text)};
  pending_failure_is_ours_ = false;
}

void GroupImpl::lost(int peer, std::string_view reason) {
  survivors_.lost(peer, reason);
  if (left_at_[static_cast<std::size_t>(peer)] != Clock::time_point()) {
    // The loss is reported after all puts of the peer. Its goodbye may overtake some of them.
    has_gone_[static_cast<std::size_t>(peer)] = true;
    any_gone_ = true;
    return;
  }
  if (!pending_failure_.ok()) return;
  pending_failure_ = {StatusCode::kPeerLost, "rank " + std::to_string(peer) + " is lost (" + std::string(reason) + ")"};
  pending_failure_is_ours_ = true;  // Peers that see this rank's end first learn here whose loss was the cause.
}

void GroupImpl::check_failures() {
  if (!wire_.error().empty()) return fail({StatusCode::kAborted, wire_.error()}, true);
  if (!pending_failure_.ok()) {
    std::string text(pending_failure_.message());
    // A peer that waits for the same data has already described it.
    if (auto const missing = describe_missing(); text.find(missing) == std::string::npos) text += "; " + missing;
    return fail({pending_failure_.code(), text}, pending_failure_is_ours_);
  }
  for (int peer = 0; any_gone_ && peer < size_; ++peer) {
    if (!has_gone_[static_cast<std::size_t>(peer)] || !needs(peer)) continue;
    std::string const text = "rank " + std::to_string(peer) + " has left the group; ";
    return fail({StatusCode::kPeerLost, text + describe_missing()}, false);
  }
}

void GroupImpl::check_deadlines(Clock::time_point now) {
  for (std::size_t peer = 0; peer < left_at_.size(); ++peer) {
    // A forked child may keep the sockets of a rank that left open, so its loss never shows.
    if (left_at_[peer] == Clock::time_point() || has_gone_[peer] || now - left_at_[peer] < kLeaveTime) continue;
    has_gone_[peer] = true;
    any_gone_ = true;
  }
  if (!wire_.symptom().empty() && symptom_seen_at_ == Clock::time_point()) symptom_seen_at_ = now;
  if (!wire_.symptom().empty() && now - symptom_seen_at_ >= kLeaveTime) wire_.report_error(wire_.symptom());
  if (auto const text = pair_.describe_stall(now, std::min(timeout() / 2, kStallPatience)); !text.empty()) {
    wire_.report_error(text);
  }
  check_failures();
  auto* const companion = companion_.load();
  if (earliest_deadline(now) > now && (companion == nullptr || !companion->is_late(now))) return;
  fail({StatusCode::kTimeout, "rank " + std::to_string(rank_) + " timed out after " +
                                  std::to_string(timeout().count()) + " ms: " + describe_missing()},
       true);
}

Deadline GroupImpl::earliest_deadline(Clock::time_point now) {
  if (now < deadlines_due_) return Deadline::max();
  Deadline earliest = Deadline::max();
  for (auto const& ring : rings_) earliest = std::min(earliest, ring->earliest_deadline(now));
  for (auto const& operation : pair_operations_) earliest = std::min(earliest, operation->deadline(now));
  // Deadlines of operations that start later are set at the next look, so it must come soon after their start.
  auto const longest_pause = std::chrono::nanoseconds(timeout()) / 64;
  deadlines_due_ = std::min(earliest, now + std::clamp<Clock::duration>(longest_pause, kShortestPause, kLongestPause));
  return earliest;
}

bool GroupImpl::needs(int peer) const {
  return pair_.needs(peer) || transfers_.busy_with(peer) || (companion_ != nullptr && companion_.load()->needs(peer)) ||
         std::any_of(rings_.begin(), rings_.end(), [&](auto const& ring) { return ring->needs(peer); });
}

std::string GroupImpl::describe_missing() const {
  for (auto const& ring : rings_) {
    if (auto text = ring->describe_missing(); !text.empty()) return text;
  }
  // Asked before the pair messages, which a companion may use.
  auto* const companion = companion_.load();
  if (auto text = companion == nullptr ? "" : companion->describe_missing(); !text.empty()) return text;
  if (auto text = pair_.describe_missing(); !text.empty()) return text;
  for (auto const& operation : pair_operations_) {
    auto const text = transfers_.describe_missing(*operation);
    if (text.empty()) continue;
    if (operation->verb() == Verb::kSend) return "message " + text;
    return std::string(verb_name(operation->verb())) + " as collective " + std::to_string(operation->number()) + " " +
           text;
  }
  return "";
}

void GroupImpl::fail(Status status, bool says_so) {
  if (failed_) return;
  failure_ = std::move(status);
  if (wire_.flight_recorder().is_on()) note_failed_records();
  failed_ = true;
  progress_at_failure_ = current_progress();
  if (says_so) {
    std::string text(failure_.message());
    if (failure_.code() == StatusCode::kPeerLost) text.insert(text.begin(), kLossPrefix);
    tell_peers(text);
  }
  if (auto* const companion = companion_.load()) companion->group_failed(failure_);
  wire_.endpoint().retract();         // Before any operation is done: from then on its memory is the caller's.
  if (on_failure_) report_failure();  // Also before that: a caller that sees the error may end the process.
  std::vector<std::shared_ptr<OperationState>> done;
  for (auto& ring : rings_) ring->cancel(failure_, done);
  transfers_.cancel();
  pair_.cancel();
  for (auto& operation : pair_operations_) {
    operation->finish(failure_);
    done.push_back(std::move(operation));
  }
  pair_operations_.clear();
  release(done);
  wire_.endpoint().wake();
}

void GroupImpl::report_failure() { std::exchange(on_failure_, nullptr)(failure_, all_flight_records()); }

void GroupImpl::tell_peers(std::string_view text) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) wire_.endpoint().send_notice(peer, text);
  }
}

Progress GroupImpl::current_progress() const {
  Progress progress{.all_to_alls = {}, .collectives = pair_.num_collectives()};
  for (auto const& ring : rings_) progress.all_to_alls.push_back(ring->num_completed());
  for (auto const& operation : pair_operations_) {
    if (operation->verb() != Verb::kSend) progress.collectives = std::min(progress.collectives, operation->number());
  }
  return progress;
}

}  // namespace headway::comm
