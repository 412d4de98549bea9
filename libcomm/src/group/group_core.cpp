// SPDX-License-Identifier: Apache-2.0

// One rank's end of a group: how calls, waits, failures and leaving fit together.
//
// - A call holds a ProgressLock. At its end, whatever it did, the collected puts are submitted and the progress
//   thread is told what it must do until the next call.
// - A wait polls first, since most exchanges end within microseconds: 200 us, or 2 ms while a peer writes large
//   blocks straight into outputs of this rank. Then it sleeps in slices of 100 ms at most, and looks at deadlines in
//   between. With more ranks than cores it yields instead of polling, and sleeps until the progress thread has
//   completed its operation.
// - Deadlines are checked once in a 64th of the timeout (from 1 to 100 ms), since there may be many operations. So a
//   timeout may be reported that much late.
// - A failure is final. All pending operations end with it, and later calls throw it.
//
// Order in fail(): the peers are told the reason first, so that they name it and not this rank's end. Then the
// endpoint retracts this rank's memory, so that no peer reads it any more. Then the operations end, and their memory
// belongs to the caller again. The callback of on_failure() comes before that, because a caller that sees the error
// may end the process.
//
// Example: rank 3 of 4 is killed in an exchange. Ranks 0 to 2 see the loss or hear of it, whichever comes first, and
// fail with "rank 3 is lost (...); operation 7 of all_to_all_v lacks 512 bytes from rank 3".
//
// A symptom is an observation that another rank's failure may explain, such as a peer that gave up. The group waits a
// second for that rank's report before it fails with the symptom itself.

#include "group/group_core.hpp"

#include "group/backoff.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace headway::comm {

namespace {

constexpr std::string_view kLeave = "\x01leave";  ///< OOB message: this rank leaves.
/// OOB message from a rank in deliver(): it takes no more messages of the peer. Without it, two leaving ranks that have
/// not received each other's last message would wait for each other.
constexpr std::string_view kRefusal = "\x01takes no more";
constexpr char kLossPrefix = '\x02';      ///< First byte of an OOB message that passes on the loss of a rank.
constexpr char kObserverPrefix = '\x06';  ///< First byte of an OOB message between device groups.

/// Longest sleep of a waiter before it checks deadlines again.
constexpr std::chrono::milliseconds kSleepSlice{100};
/// Time that a waiter polls before it sleeps. It is longer while a peer writes large blocks into outputs of this rank
/// ("windows"): such a write takes about 2 ms, and a sleeping rank would react late.
constexpr std::chrono::microseconds kSpinTime{200}, kSpinTimeWithWindows{2000};
/// A waiter yields instead of sleeping for less time than this.
constexpr std::chrono::milliseconds kShortestSleep{1};

/// Time between two looks at the deadlines of all operations, of which there may be many.
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{100};
/// Longest time that a receive may be stuck behind messages without a posted receive. Half of the group's timeout if
/// that is shorter, since this error says more than a timeout.
constexpr std::chrono::milliseconds kStallPatience{30'000};

/// While it exists, a waiter takes the socket input in place of the progress thread.
class InputTaken {
 public:
  explicit InputTaken(BackgroundProgress& background) : background_(background) { background_.begin_wait(); }
  ~InputTaken() { background_.end_wait(); }
  InputTaken(InputTaken const&) = delete;
  InputTaken& operator=(InputTaken const&) = delete;

 private:
  BackgroundProgress& background_;
};

bool shares_cores(HostShare const& share) { return share.num_ranks > share.num_cores; }

}  // namespace

GroupCore::GroupCore(std::unique_ptr<Endpoint> endpoint, GroupOptions options, ReceiveLayout layout,
                     std::shared_ptr<ProgressThread> progress_thread, ProtocolRules const& rules)
    : options_(std::move(options)),
      timeout_(options_.timeout),
      owner_(getpid()),
      rank_(endpoint->rank()),
      size_(endpoint->size()),
      cores_are_shared_(shares_cores(endpoint->host_share())),
      channels_(std::move(endpoint), options_, layout, rules, [this](auto& done) { release(done); }),
      waiters_(context().endpoint()),
      peer_reports_(size_),
      survivors_(rank_, size_),
      ahead_callbacks_(static_cast<std::size_t>(options_.num_channels)),
      background_(*this, context().endpoint(), std::move(progress_thread)) {
  background_.start();
}

GroupCore::~GroupCore() {
  // A forked child must not send the leave message: sockets, queue pairs and locks belong to the parent.
  if (getpid() != owner_) {
    context().abandon();
    waiters_.abandon();
    return;
  }
  background_.stop();
  std::lock_guard const lock(mutex_);  // Callbacks may still call into the group; `callbacks_` waits for them next.
  send_leave();
  if (!failed_) fail({StatusCode::kAborted, "the group was destroyed on rank " + std::to_string(rank_)}, false);
}

GroupCore::ProgressLock::ProgressLock(GroupCore& core) : core_(core), lock_(core.mutex_, std::defer_lock) {
  if (lock_.try_lock()) return;
  core_.num_waiting_.fetch_add(1, std::memory_order_relaxed);
  lock_.lock();
  core_.num_waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void GroupCore::ProgressLock::yield_to_waiters() {
  if (core_.num_waiting_.load(std::memory_order_relaxed) > 0) yield();
}

void GroupCore::ProgressLock::yield() {
  lock_.unlock();
  std::this_thread::yield();
  lock_.lock();
}

void GroupCore::end_call() noexcept {
  try {
    context().submit();
    background_.update();
  } catch (std::exception const& error) {
    context().report_error(error.what());  // The group fails with it at the next check.
    background_.notify_soon();
  }
}

void GroupCore::expect_peer(int peer, char const* what) const {
  if (peer >= 0 && peer < size_) return;
  throw UsageError(std::string(what) + ": rank " + std::to_string(peer) + " is not in a group of " +
                   std::to_string(size_));
}

void GroupCore::expect_channel(int channel, char const* what) const {
  if (channel >= 0 && channel < options_.num_channels) return;
  throw UsageError(std::string(what) + ": the group has no channel " + std::to_string(channel) + ", num_channels is " +
                   std::to_string(options_.num_channels));
}

bool GroupCore::progress() {
  if (failed_) {
    context().endpoint().poll(survivors_);  // Unread socket input would wake the progress thread forever.
    return false;
  }
  bool const found = context().endpoint().poll(*this);
  channels_.progress();
  complete_all_to_alls();
  context().submit();
  check_failures();
  if (num_ahead_callbacks_ > 0) tell_of_peers_ahead();
  return found;
}

void GroupCore::complete_all_to_alls() {
  channels_.complete_all_to_alls(completed_);
  if (!completed_.empty()) release(completed_);
}

Deadline GroupCore::revoke_rts(Clock::time_point now) {
  Deadline const next = channels_.revoke_rts(now);
  complete_all_to_alls();
  context().submit();
  return next;
}

void GroupCore::release(GroupChannels::Operations& done) {
  waiters_.wake_done();
  for (auto& operation : done) {
    if (!operation->has_callbacks()) continue;
    for (auto& callback : operation->take_callbacks()) {
      callbacks_.submit(std::move(callback));
      --num_callbacks_;
    }
  }
  done.clear();
}

Status GroupCore::wait(ProgressLock& lock, OperationState& operation,
                       std::optional<std::chrono::milliseconds> timeout) {
  if (!options_.adapt_lag || operation.verb() != Verb::kAllToAll) return wait_unobserved(lock, operation, timeout);
  int const waited = static_cast<AllToAllOperation&>(operation).channel;
  for (auto const& channel : channels_.all_to_alls()) channel->observers().wait_began(waited);
  Status status = wait_unobserved(lock, operation, timeout);
  for (auto const& channel : channels_.all_to_alls()) channel->observers().wait_ended(waited);
  return status;
}

Status GroupCore::wait_unobserved(ProgressLock& lock, OperationState& operation,
                                  std::optional<std::chrono::milliseconds> timeout) {
  Deadline const deadline = timeout ? deadline_after(*timeout) : Deadline::max();
  Backoff backoff(cores_are_shared_);
  Waiters::Waiter waiter(waiters_);
  std::optional<InputTaken> input_taken;
  for (;;) {
    bool const found = progress();
    if (operation.done()) break;
    if (!input_taken && !cores_are_shared_) input_taken.emplace(background_);
    lock.yield_to_waiters();
    bool const has_windows = channels_.has_windows();
    if (found && has_windows) backoff.restart();
    switch (backoff.next(has_windows ? kSpinTimeWithWindows : kSpinTime)) {
      case Backoff::Step::kLookAgain:  // The shortest exchanges end before a pause would.
        break;
      case Backoff::Step::kPause:
        cpu_pause();
        break;
      case Backoff::Step::kYield:
        lock.yield();
        break;
      case Backoff::Step::kSleep:
        auto const now = Clock::now();
        check_deadlines(now);
        if (!operation.done() && now >= deadline) {
          operation.timed_out_waits += now - backoff.slow_since();
          return {StatusCode::kTimeout, "rank " + std::to_string(rank_) + " still waits: " + describe_missing()};
        }
        auto const next_look = revoke_rts(now);
        if (operation.done()) break;
        if (next_look - now < kShortestSleep) {
          lock.yield();
        } else {
          sleep(lock, waiter, std::min({deadline, now + kSleepSlice, next_look}), operation);
        }
        break;
    }
  }
  if (backoff.took_time() || operation.timed_out_waits > Clock::duration::zero())
    record_wait(operation, backoff.slow_since());
  return operation.status();
}

// On overloaded cores a thread waits for its turn after each wake-up: 11 ms beside six spinning programs on two cores.
// A waiter that acts on the arrivals of all peers wakes up for each of them. So it leaves them to the progress thread,
// which the scheduler prefers because it computes little, and wakes up once.
void GroupCore::sleep(ProgressLock& lock, Waiters::Waiter& waiter, Deadline until, OperationState const& operation) {
  if (!cores_are_shared_ || !background_.has_thread()) {
    return waiters_.sleep(lock.mutex_lock(), waiter, until, operation, [this] { progress(); });
  }
  struct BackgroundWait {
    explicit BackgroundWait(int& num_waits) : num_waits_(num_waits) { ++num_waits_; }
    ~BackgroundWait() { --num_waits_; }
    BackgroundWait(BackgroundWait const&) = delete;
    BackgroundWait& operator=(BackgroundWait const&) = delete;

   private:
    int& num_waits_;
  } const background_wait(num_background_waits_);
  background_.update();  // From here on the progress thread acts on each arrival.
  if (!operation.done()) waiters_.follow(lock.mutex_lock(), until, operation);
}

void GroupCore::record_wait(OperationState& operation, Clock::time_point from) {
  if (operation.verb() != Verb::kAllToAll || failed_) return;
  auto& all_to_all = static_cast<AllToAllOperation&>(operation);
  if (all_to_all.timed_out_waits > Clock::duration::zero()) {
    if (from == Clock::time_point()) from = Clock::now();
    from -= std::exchange(all_to_all.timed_out_waits, Clock::duration::zero());
  }
  channels_.all_to_all(all_to_all.channel).waited(all_to_all, from);
}

bool GroupCore::call_when_done(ProgressLock& lock, OperationState& operation, std::function<void()>& callback,
                               std::chrono::microseconds poll_time) {
  Deadline const until = Clock::now() + (cores_are_shared_ ? std::chrono::microseconds(0) : poll_time);
  do {
    progress();
    if (operation.done()) return false;
    lock.yield_to_waiters();
    cpu_pause();
  } while (Clock::now() < until);
  if (operation.done()) return false;  // Another thread completed it meanwhile.
  callbacks_.ensure_started();
  operation.add_callback(std::move(callback));
  ++num_callbacks_;
  return true;
}

void GroupCore::on_peer_ahead(int channel, std::function<void(std::uint64_t seq)> callback) {
  auto& present = ahead_callbacks_[static_cast<std::size_t>(channel)];
  if (present.call) {
    present.call->has_ended = true;
    callbacks_.submit([before = std::move(present.call)] {});  // Destroyed there, under no lock.
    --num_ahead_callbacks_;
  }
  present = {};
  if (!callback) return;
  callbacks_.ensure_started();
  present.call = std::make_shared<AheadCallback::Call>();
  present.call->function = std::move(callback);
  ++num_ahead_callbacks_;
}

void GroupCore::tell_of_peers_ahead() {
  if (failed_) return;
  for (std::size_t channel = 0; channel < ahead_callbacks_.size(); ++channel) {
    auto& [call, num_told] = ahead_callbacks_[channel];
    std::uint64_t const num_ahead = channels_.all_to_all(static_cast<int>(channel)).num_ahead();
    if (!call || num_ahead <= num_told) continue;
    num_told = num_ahead;
    callbacks_.submit([call = call, seq = num_ahead - 1] {
      if (!call->has_ended) call->function(seq);
    });
  }
}

void GroupCore::end_ahead_callbacks() noexcept {
  for (auto const& [call, num_told] : ahead_callbacks_) {
    if (call) call->has_ended = true;
  }
}

void GroupCore::throw_if_failed() const {
  if (failed_) throw OperationError(failure_);
}

void GroupCore::fail(Status status, bool says_so, base::LogLevel level) {
  if (failed_) return;
  end_ahead_callbacks();
  failure_ = std::move(status);
  if (!has_left_) {
    base::log(level, "group", rank_, "group '" + options_.name + "' failed: " + std::string(failure_.message()));
  }
  if (context().flight_recorder().is_on()) keep_failed_records();
  progress_at_failure_ = channels_.completed_counts();
  failed_ = true;
  if (says_so) tell_failure_to_peers();
  if (auto* const observer = observer_.load()) observer->group_failed(failure_);
  context().endpoint().retract();     // Before any operation is done: from then on its memory is the caller's.
  if (on_failure_) report_failure();  // Also before that: a caller that sees the error may end the process.
  GroupChannels::Operations done;
  channels_.cancel(failure_, done);
  release(done);
  context().endpoint().wake();
}

void GroupCore::tell_failure_to_peers() noexcept {
  try {
    std::string text(failure_.message());
    if (failure_.code() == StatusCode::kPeerLost) text.insert(text.begin(), kLossPrefix);
    send_oob_to_peers(text);
  } catch (std::exception const&) {
    // This rank's operations must end all the same. Peers find out by their own time limits.
    base::log(base::LogLevel::kWarning, "group", rank_, "peers could not be told of a failure: out of memory");
  }
}

void GroupCore::fail_in_background(std::string const& reason) noexcept {
  std::lock_guard const lock(mutex_);
  try {
    fail({StatusCode::kAborted, reason}, true);
  } catch (std::exception const&) {
    context().report_error(reason);  // Reported by the next call.
  }
}

void GroupCore::check_failures() {
  if (!context().error().empty()) return fail({StatusCode::kAborted, context().error()}, true);
  if (auto const& found = peer_reports_.failure(); !found.ok()) {
    std::string text(found.message());
    // A peer that waits for the same data has already described it.
    if (auto const missing = describe_missing(); text.find(missing) == std::string::npos) text += "; " + missing;
    return fail({found.code(), text}, peer_reports_.failure_is_ours());
  }
  for (int peer = 0; peer_reports_.has_any_gone() && peer < size_; ++peer) {
    if (!peer_reports_.has_gone(peer) || !needs(peer)) continue;
    std::string const text = "rank " + std::to_string(peer) + " has left the group; ";
    auto const level = options_.warns_of_departures ? base::LogLevel::kWarning : base::LogLevel::kInfo;
    return fail({StatusCode::kPeerLost, text + describe_missing()}, false, level);
  }
}

void GroupCore::check_deadlines(Clock::time_point now) {
  peer_reports_.expire(now);
  if (!context().symptom().empty() && symptom_seen_at_ == Clock::time_point()) symptom_seen_at_ = now;
  if (!context().symptom().empty() && now - symptom_seen_at_ >= PeerReports::kLeaveTime) {
    context().report_error(context().symptom());
  }
  auto const patience = std::min(timeout() / 2, kStallPatience);
  if (auto const text = channels_.p2p().describe_stall(now, patience); !text.empty()) context().report_error(text);
  check_failures();
  auto* const observer = observer_.load();
  if (earliest_deadline(now) > now && (observer == nullptr || !observer->is_late(now))) return;
  fail({StatusCode::kTimeout, "rank " + std::to_string(rank_) + " timed out after " +
                                  std::to_string(timeout().count()) + " ms: " + describe_missing()},
       true);
}

Deadline GroupCore::earliest_deadline(Clock::time_point now) {
  if (now < deadlines_due_) return Deadline::max();
  Deadline const earliest = channels_.earliest_deadline(now);
  // Deadlines of operations that start later are set at the next look, so it must come soon after their start.
  auto const longest_pause = std::chrono::nanoseconds(timeout()) / 64;
  deadlines_due_ = std::min(earliest, now + std::clamp<Clock::duration>(longest_pause, kShortestPause, kLongestPause));
  return earliest;
}

bool GroupCore::needs(int peer) const {
  return channels_.needs(peer) || (observer_ != nullptr && observer_.load()->needs(peer));
}

std::string GroupCore::describe_missing() const {
  if (auto text = channels_.describe_missing_all_to_all(); !text.empty()) return text;
  // The observer comes first: a missing point-to-point message may be one of its own.
  auto* const observer = observer_.load();
  if (auto text = observer == nullptr ? "" : observer->describe_missing(); !text.empty()) return text;
  return channels_.describe_missing_message();
}

void GroupCore::on_failure(GroupAdmin::FailureCallback callback) {
  on_failure_ = std::move(callback);
  if (failed_ && on_failure_) report_failure();
}

void GroupCore::report_failure() { std::exchange(on_failure_, nullptr)(failure_, flight_records()); }

void GroupCore::send_leave() {
  if (!std::exchange(has_left_, true)) send_oob_to_peers(kLeave);
  on_failure_ = nullptr;  // Leaving is not a failure.
}

void GroupCore::send_refusal(int peer) { context().endpoint().send_oob(peer, kRefusal); }

void GroupCore::send_oob_to_peers(std::string_view text) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) context().endpoint().send_oob(peer, text);
  }
}

void GroupCore::on_oob(int peer, std::string_view text) {
  if (text == kLeave) return peer_reports_.left(peer, Clock::now());
  if (text == kRefusal) return peer_reports_.refused(peer, Clock::now());
  if (text.starts_with(kObserverPrefix)) return on_observer_oob(peer, text.substr(1));
  if (Survivors::is_survivor_message(text)) {
    survivors_.on_oob(peer, text);
    return peer_reports_.failed_elsewhere(
        {StatusCode::kAborted, "rank " + std::to_string(peer) + " leaves the group behind (shrink)"});
  }
  bool const of_loss = text.starts_with(kLossPrefix);
  if (of_loss) text.remove_prefix(1);
  peer_reports_.failed_elsewhere({of_loss ? StatusCode::kPeerLost : StatusCode::kAborted, std::string(text)});
}

void GroupCore::lost(int peer, std::string_view reason) {
  survivors_.lost(peer, reason);
  peer_reports_.lost(peer, reason);
}

void GroupCore::attach(GroupObserver& observer) {
  throw_if_failed();
  expects(observer_ == nullptr, "this group has a device group already");
  observer_ = &observer;
  for (auto const& [peer, text] : std::exchange(early_oob_, {})) on_observer_oob(peer, text);
  background_.notify_soon();
}

void GroupCore::detach(GroupObserver& observer) noexcept {
  std::lock_guard const lock(mutex_);
  if (observer_ != &observer) return;
  observer_ = nullptr;
}

void GroupCore::send_to_observer(int peer, std::string_view text) {
  throw_if_failed();
  context().endpoint().send_oob(peer, kObserverPrefix + std::string(text));
}

void GroupCore::on_observer_oob(int peer, std::string_view text) noexcept {
  try {
    if (auto* const observer = observer_.load()) return observer->on_oob(peer, text);
    early_oob_.emplace_back(peer, text);
  } catch (std::exception const& error) {
    context().report_error(error.what());
  }
}

void GroupCore::remind_observer() noexcept {
  if (auto* const observer = observer_.load()) observer->group_failed(failure_);
}

std::vector<FlightRecord> GroupCore::flight_records() {
  if (!context().flight_recorder().is_on()) return {};
  auto const clock = context().flight_recorder().read_clock();
  std::vector<FlightRecord> records;
  channels_.append_completed_flights(clock, records);
  if (auto* const observer = observer_.load()) observer->append_flights(clock, records);
  auto const pending = failed_ ? failed_records_ : channels_.pending_flights(clock);
  records.insert(records.end(), pending.begin(), pending.end());
  std::ranges::stable_sort(records, {}, &FlightRecord::started);
  return records;
}

void GroupCore::keep_failed_records() {
  auto const clock = context().flight_recorder().read_clock();
  failed_records_ = channels_.pending_flights(clock);
  for (auto& record : failed_records_) {
    record.state = FlightState::kFailed;
    record.completed = clock.time();
  }
}

}  // namespace headway::comm
