// Waiting for operations: a leader, followers, and the progress thread.
//
// Idea: a waiting thread polls the endpoint under the group's lock. After 200 us without success (2 ms while outputs
// are exposed) it sleeps. One sleeper, the leader, sleeps in the endpoint, takes its wake-ups and polls for all. The
// other sleepers, the followers, sleep on a condition variable. So no thread takes a wake-up that another one needs.
//   Leader: arm(), poll once more, publish its operation (leader_sleeps_for_), unlock, sleep(), lock, disarm().
//   Any poll that completes operations notifies the followers, and wakes the leader if its operation is done.
//   A leader that returns gives up the lead and notifies the followers; the first to wake becomes the leader.
//   A step of the progress thread takes wake-ups too. It keeps the lock until it has polled, and wakes the leader again
//   if the leader's operation is done.
//
// Example: thread A waits for operation 0 and leads; thread B waits for operation 1 and follows. Data of operation 0
// wakes A, which completes 0 and notifies. B finds 1 incomplete and sleeps on. A leaves and notifies; B leads.
//
// Invariants: there is at most one leader. A follower sleeps only while there is one.
//   A poll follows each arm(), since an arrival before arm() rings no doorbell.
// Complexity: a completion notifies all followers; those whose operation is not done sleep again.
// Source: tests/model/sleeping.pml checks that no wake-up is lost. Measurements: docs/decisions/sleeping.md.

#include "group_impl.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace headway::comm {

namespace {

/// Longest sleep of a waiter before it checks deadlines again.
constexpr std::chrono::milliseconds kSleepSlice{100};
/// Time that a waiter polls before it sleeps. It is longer while a peer puts large blocks into exposed outputs: that
/// takes about as long, and a sleeping rank answers late.
constexpr std::chrono::microseconds kSpinTime{200}, kSpinTimeWhileExposing{2000};
/// Shorter sleeps cost more than they save.
constexpr std::chrono::milliseconds kShortestSleep{1};
/// Number of steps without need for events after which the progress thread stops watching for them. A program that uses
/// futures needs them again soon, and arming costs a system call.
constexpr int kIdleStepsWatched = 32;

}  // namespace

GroupImpl::Visit::Visit(GroupImpl& group) : group_(group), lock_(group.mutex_, std::defer_lock) {
  if (lock_.try_lock()) return;
  group_.num_waiting_.fetch_add(1, std::memory_order_relaxed);
  lock_.lock();
  group_.num_waiting_.fetch_sub(1, std::memory_order_relaxed);
}

GroupImpl::Visit::~Visit() { group_.leave_visit(); }

void GroupImpl::leave_visit() noexcept {
  try {
    wire_.submit();
    update_background();
  } catch (std::exception const& error) {
    wire_.report_error(error.what());  // The group fails with it at the next check.
    if (progress_thread_) progress_thread_->notify(std::chrono::milliseconds(0));
  }
}

void GroupImpl::Visit::give_way() {
  if (group_.num_waiting_.load(std::memory_order_relaxed) > 0) yield();
}

void GroupImpl::Visit::yield() {
  lock_.unlock();
  std::this_thread::yield();
  lock_.lock();
}

GroupImpl::GroupImpl(std::unique_ptr<Endpoint> endpoint, GroupOptions options, LandingLayout layout,
                     std::shared_ptr<ProgressThread> progress_thread, Acquainted acquainted)
    : options_(std::move(options)),
      timeout_(options_.timeout),
      owner_(getpid()),
      rank_(endpoint->rank()),
      size_(endpoint->size()),
      acquainted_(std::move(acquainted)),
      lifeline_fd_(endpoint->lifeline_fd()),
      activity_fd_(endpoint->activity_fd()),
      wire_(std::move(endpoint), layout, options_),
      transfers_(wire_, options_, [this](OperationState& operation) { finish(operation); }),
      pair_(wire_, transfers_, options_.unexpected_bytes, [this](OperationState& operation) { finish(operation); }),
      survivors_(rank_, size_),
      left_at_(static_cast<std::size_t>(size_)),
      has_gone_(static_cast<std::size_t>(size_)),
      refuses_(static_cast<std::size_t>(size_)),
      refused_at_(static_cast<std::size_t>(size_)),
      progress_thread_(std::move(progress_thread)) {
  lands_by_polling_ = wire_.endpoint().lands_by_polling();
  wants_keep_alive_ = wire_.endpoint().wants_keep_alive();
  HostShare const share = wire_.endpoint().host_share();
  cores_are_shared_ = share.num_ranks > share.num_cores;
  for (int ring = 0; ring < options_.num_channels; ++ring) {
    rings_.push_back(std::make_unique<RingChannel>(wire_, transfers_, options_, ring));
  }
  wire_.stats().landing_bytes = layout.total_bytes();
  if (progress_thread_) progress_thread_->attach(*this);
}

GroupImpl::~GroupImpl() {
  // A forked child never says goodbye for its parent: sockets, queue pairs and locks belong to the parent.
  if (getpid() != owner_) {
    wire_.abandon();
    // The destructor of the condition variable would wait for the threads that slept on it at the fork.
    static_cast<void>(followers_changed_.release());
    return;
  }
  if (progress_thread_) progress_thread_->detach(*this);
  std::lock_guard const lock(mutex_);  // Callbacks may still call into the group; `callbacks_` waits for them next.
  say_goodbye();
  if (!failed_) fail({StatusCode::kAborted, "the group was destroyed on rank " + std::to_string(rank_)}, false);
}

PeerTraits GroupImpl::traits(int peer) const { return wire_.endpoint().traits(peer); }

std::string GroupImpl::address(int peer) const {
  expect_peer(peer, "address");
  auto const at = static_cast<std::size_t>(peer);
  auto const& addresses = acquainted_.addresses;
  return at < addresses.size() && !addresses[at].empty() ? addresses[at] : "127.0.0.1";
}

OperationPtr GroupImpl::all_to_all_v(AllToAllArgs const& args) {
  Visit visit(*this);
  return start_all_to_all_v(args, false);
}

Status GroupImpl::all_to_all_v_and_wait(AllToAllArgs const& args) {
  Visit visit(*this);
  auto const operation = start_all_to_all_v(args, true);
  return wait(visit, *operation, std::nullopt);
}

void GroupImpl::expect_channel(int channel, char const* what) const {
  if (channel >= 0 && channel < options_.num_channels) return;
  throw UsageError(std::string(what) + ": the group has no channel " + std::to_string(channel) + ", num_channels is " +
                   std::to_string(options_.num_channels));
}

std::shared_ptr<RingOperation> GroupImpl::start_all_to_all_v(AllToAllArgs const& args, bool is_attended) {
  throw_if_failed();
  expect_channel(args.channel, "all_to_all_v");
  auto const channel = static_cast<std::size_t>(args.channel);
  auto operation = rings_[channel]->start(args, timeout_, is_attended);
  complete_rings();
  if (!operation->done() && wire_.flight_recorder().is_on()) rings_[channel]->note_started(*operation);
  return operation;
}

void GroupImpl::arrived(int source, Tag tag) {
  if (tag.channel < rings_.size()) return rings_[tag.channel]->arrived(source, tag);
  if (tag.channel == kPairChannel || tag.channel == kPairConsumedChannel) return pair_.arrived(source, tag);
  if (tag.channel >= kTransferReadyChannel && tag.channel <= kTransferDataChannel)
    return transfers_.arrived(source, tag);
  wire_.report_error("rank " + std::to_string(source) + " used the unknown channel " + std::to_string(tag.channel));
}

bool GroupImpl::progress() {
  if (failed_) {
    wire_.endpoint().poll(survivors_);  // Unread socket input would wake the progress thread forever.
    return false;
  }
  bool const found = wire_.endpoint().poll(*this);
  wire_.send_signals();
  if (!transfers_.idle()) {
    wire_.submit();  // Peers wait for these, and the transfers below may take long.
    transfers_.progress();
  }
  if (!pair_operations_.empty()) pair_.progress();
  complete_rings();
  wire_.submit();
  check_failures();
  return found;
}

void GroupImpl::complete_rings() {
  for (auto& ring : rings_) {
    if (!ring->idle()) ring->progress(completed_);
  }
  if (!completed_.empty()) release(completed_);
}

void GroupImpl::release(std::vector<std::shared_ptr<OperationState>>& done) {
  wake_waiters();
  for (auto& operation : done) {
    if (!operation->has_callbacks()) continue;
    for (auto& callback : operation->take_callbacks()) {
      callbacks_.submit(std::move(callback));
      --num_callbacks_;
    }
  }
  done.clear();
}

void GroupImpl::wake_waiters() {
  if (num_followers_ > 0) followers_changed_->notify_all();
  if (leader_sleeps_for_ != nullptr && leader_sleeps_for_->done()) wire_.endpoint().wake();
}

void GroupImpl::finish(OperationState& operation) {
  // The all-to-all channels complete their operations themselves, in order.
  if (operation.verb() == Verb::kAllToAll || operation.pending_parts() != 0) return;
  std::size_t const index = operation.pending_index;
  if (index == OperationState::kNotPending) return;  // Still being started; finish_start() completes it.
  auto& place = pair_operations_[index];
  std::vector<std::shared_ptr<OperationState>> done{std::move(place)};
  if (index + 1 < pair_operations_.size()) {
    place = std::move(pair_operations_.back());
    place->pending_index = index;
  }
  pair_operations_.pop_back();
  operation.pending_index = OperationState::kNotPending;
  if (wire_.flight_recorder().is_on()) wire_.flight_recorder().complete(operation.flight);
  operation.finish({});
  release(done);
}

/// Created and destroyed under the group's lock.
class GroupImpl::Waiter {
 public:
  explicit Waiter(GroupImpl& group) : group_(group) {}
  Waiter(Waiter const&) = delete;
  Waiter& operator=(Waiter const&) = delete;
  ~Waiter() {
    if (!leads_) return;
    group_.has_leader_ = false;
    if (group_.num_followers_ > 0) group_.followers_changed_->notify_all();
  }
  /// Becomes the leader if there is none. @returns whether this thread leads.
  bool lead() {
    if (!leads_ && !group_.has_leader_) leads_ = group_.has_leader_ = true;
    return leads_;
  }

 private:
  GroupImpl& group_;
  bool leads_ = false;
};

Status GroupImpl::wait(Operation& base, std::optional<std::chrono::milliseconds> timeout) {
  auto& operation = static_cast<OperationState&>(base);
  if (operation.done() && !options_.adapt_lag) return operation.status();
  Visit visit(*this);
  return wait(visit, operation, timeout);
}

Status GroupImpl::wait(Visit& visit, OperationState& operation, std::optional<std::chrono::milliseconds> timeout) {
  if (!options_.adapt_lag || operation.verb() != Verb::kAllToAll) return wait_untimed(visit, operation, timeout);
  int const waited = static_cast<RingOperation&>(operation).ring;
  for (auto& ring : rings_) ring->wait_began(waited);
  Status status = wait_untimed(visit, operation, timeout);
  for (auto& ring : rings_) ring->wait_ended(waited);
  return status;
}

Status GroupImpl::wait_untimed(Visit& visit, OperationState& operation,
                               std::optional<std::chrono::milliseconds> timeout) {
  Deadline const deadline = timeout ? deadline_after(*timeout) : Deadline::max();
  Backoff backoff(cores_are_shared_);
  Waiter waiter(*this);
  for (;;) {
    bool const found = progress();
    if (operation.done()) break;
    visit.give_way();
    bool const exposes = transfers_.exposes();
    if (found && exposes) backoff.restart();
    switch (backoff.next(exposes ? kSpinTimeWhileExposing : kSpinTime)) {
      case Backoff::Step::kLookAgain:  // The shortest exchanges end before a pause would.
        break;
      case Backoff::Step::kPause:
        cpu_pause();
        break;
      case Backoff::Step::kYield:
        visit.yield();
        break;
      case Backoff::Step::kSleep:
        auto const now = Clock::now();
        check_deadlines(now);
        if (!operation.done() && now >= deadline) {
          return {StatusCode::kTimeout, "rank " + std::to_string(rank_) + " still waits: " + describe_missing()};
        }
        auto const next_look = revoke_offers(now);
        if (operation.done()) break;
        if (next_look - now < kShortestSleep) {
          visit.yield();
        } else {
          sleep(visit, waiter, std::min({deadline, now + kSleepSlice, next_look}), operation);
        }
        break;
    }
  }
  if (backoff.took_time()) note_wait(operation, backoff.slow_since());
  return operation.status();
}

Deadline GroupImpl::revoke_offers(Clock::time_point now) {
  Deadline next = Deadline::max();
  for (auto& ring : rings_) next = std::min(next, ring->revoke_offers(now));
  complete_rings();
  wire_.submit();
  return next;
}

void GroupImpl::sleep(Visit& visit, Waiter& waiter, Deadline deadline, OperationState const& operation) {
  if (waiter.lead()) return sleep_as_leader(visit, deadline, operation);
  ++num_followers_;
  followers_changed_->wait_until(visit.lock(), deadline, [&] { return operation.done() || !has_leader_; });
  --num_followers_;
}

void GroupImpl::sleep_as_leader(Visit& visit, Deadline deadline, OperationState const& operation) {
  arm();
  progress();  // An arrival before arm() took effect rings no doorbell.
  if (!operation.done()) {
    leader_sleeps_for_ = &operation;
    visit.lock().unlock();
    wire_.endpoint().sleep(deadline);
    visit.lock().lock();
    leader_sleeps_for_ = nullptr;
  }
  disarm();
}

void GroupImpl::note_wait(OperationState& operation, Clock::time_point from) {
  if (operation.verb() != Verb::kAllToAll || failed_) return;
  auto& ring_operation = static_cast<RingOperation&>(operation);
  auto& ring = *rings_[static_cast<std::size_t>(ring_operation.ring)];
  if (from != Clock::time_point()) ring.waited(ring_operation, from);
  if (ring_operation.is_attended && wire_.flight_recorder().is_on()) ring.note_completed(ring_operation);
}

void GroupImpl::arm() {
  if (num_armed_++ == 0) wire_.endpoint().arm();
}

void GroupImpl::disarm() {
  if (--num_armed_ == 0) wire_.endpoint().disarm();
}

bool GroupImpl::test(Operation& operation) {
  if (operation.done()) return true;
  Visit visit(*this);
  progress();
  auto const now = Clock::now();
  check_deadlines(now);
  revoke_offers(now);
  return operation.done();
}

void GroupImpl::on_done(Operation& base, std::function<void()> callback, std::chrono::microseconds poll_time) {
  auto& operation = static_cast<OperationState&>(base);
  if (!operation.done()) {
    Visit visit(*this);
    poll_briefly(visit, operation, poll_time);
    if (!operation.done()) {
      callbacks_.ensure_started();
      operation.add_callback(std::move(callback));
      ++num_callbacks_;
      return;
    }
  }
  callback();
}

void GroupImpl::poll_briefly(Visit& visit, OperationState const& operation, std::chrono::microseconds time) {
  Deadline const until = Clock::now() + (cores_are_shared_ ? std::chrono::microseconds(0) : time);
  do {
    progress();
    if (operation.done()) return;
    visit.give_way();
    cpu_pause();
  } while (Clock::now() < until);
}

BackgroundNeed GroupImpl::current_need() const {
  if (failed_) return BackgroundNeed::kNone;
  bool const is_pending = !pair_operations_.empty() || !transfers_.idle() ||
                          std::any_of(rings_.begin(), rings_.end(), [](auto const& ring) { return !ring->idle(); });
  if (num_callbacks_ > 0 || (is_pending && lands_by_polling_)) return BackgroundNeed::kEvents;
  bool const rings_need_looks =
      std::any_of(rings_.begin(), rings_.end(), [](auto const& ring) { return ring->needs_looks(); });
  bool const needs_looks = rings_need_looks || wire_.has_signals() || !pair_operations_.empty() || !transfers_.idle();
  return needs_looks ? BackgroundNeed::kLooks : BackgroundNeed::kNone;
}

void GroupImpl::update_background() {
  if (!progress_thread_) return;
  // Done under the same lock as the change of the need: from here on an arrival rings, whatever the progress thread
  // does.
  if (num_callbacks_ > 0 && !background_armed_) {
    watch_in_background();
    progress();  // An arrival before arm() took effect rings no doorbell.
  }
  auto const need = current_need();
  auto const before = need_.load(std::memory_order_relaxed);
  if (need == before) return;
  need_.store(need, std::memory_order_relaxed);
  if (need < before) return;
  bool const has_events = need == BackgroundNeed::kEvents && background_armed_;
  progress_thread_->notify(has_events ? ProgressThread::kDeadlineInterval : ProgressThread::kLookInterval);
}

void GroupImpl::watch_in_background() {
  background_armed_ = true;
  num_idle_steps_ = 0;
  arm();
  progress_thread_->watch_activity(*this, true);
}

void GroupImpl::unwatch_in_background() {
  background_armed_ = false;
  progress_thread_->watch_activity(*this, false);
  disarm();
}

void GroupImpl::background_step() noexcept {
  try {
    if (companion_ != nullptr && failed_) {  // First, because the code below may throw.
      Visit visit(*this);
      if (auto* const companion = companion_.load()) companion->group_failed(failure_);
    }
    // Another thread is in the library and does the same work. The step can be skipped; the next one comes soon.
    if (background_need() == BackgroundNeed::kLooks && !std::unique_lock(mutex_, std::try_to_lock).owns_lock()) return;
    Visit visit(*this);
    // Does not block: lets the endpoint handle socket input. It takes wake-ups, the leader's too, so the lock is held
    // until progress() has found what they announced.
    wire_.endpoint().sleep(Deadline::min());
    // This call may have taken the wake-up of a leader that has not woken yet.
    if (leader_sleeps_for_ != nullptr && leader_sleeps_for_->done()) wire_.endpoint().wake();
    if (wants_keep_alive_ && !failed_) wire_.endpoint().keep_alive();
    progress();
    auto const now = Clock::now();
    check_deadlines(now);
    revoke_offers(now);
    bool const is_needed = current_need() == BackgroundNeed::kEvents;
    num_idle_steps_ = is_needed ? 0 : num_idle_steps_ + 1;
    if (is_needed && !background_armed_) {
      watch_in_background();
      progress();
    } else if (background_armed_ && num_idle_steps_ > (lands_by_polling_ ? 0 : kIdleStepsWatched)) {
      unwatch_in_background();
    }
  } catch (std::exception const& error) {
    fail_in_background(std::string("progress thread: ") + error.what());
  }
}

void GroupImpl::fail_in_background(std::string const& reason) noexcept {
  std::lock_guard const lock(mutex_);
  try {
    fail({StatusCode::kAborted, reason}, true);
  } catch (std::exception const&) {
    wire_.report_error(reason);  // Reported by the next call.
  }
}

void GroupImpl::set_timeout(std::chrono::milliseconds timeout) {
  expects(timeout.count() > 0, "timeout must be above 0");
  Visit visit(*this);
  timeout_ = std::min(timeout, kLongestTimeout);
}

void GroupImpl::set_max_lag(int max_lag, std::optional<int> channel) {
  expects(max_lag >= 0 && max_lag <= options_.max_lag_limit, "max_lag " + std::to_string(max_lag) +
                                                                 " is outside 0 to max_lag_limit " +
                                                                 std::to_string(options_.max_lag_limit));
  if (channel) expect_channel(*channel, "set_max_lag");
  Visit visit(*this);
  if (channel) {
    rings_[static_cast<std::size_t>(*channel)]->set_max_lag(max_lag);
  } else {
    for (auto& ring : rings_) ring->set_max_lag(max_lag);
  }
  progress();
}

int GroupImpl::max_lag(int channel) {
  expect_channel(channel, "max_lag");
  Visit visit(*this);
  return rings_[static_cast<std::size_t>(channel)]->max_lag();
}

int GroupImpl::recommended_max_lag(int channel) {
  expect_channel(channel, "recommended_max_lag");
  Visit visit(*this);
  return rings_[static_cast<std::size_t>(channel)]->recommended_max_lag();
}

GroupStats GroupImpl::stats() {
  Visit visit(*this);
  return wire_.stats();
}

void GroupImpl::reset_stats() {
  Visit visit(*this);
  auto& stats = wire_.stats();
  auto const landing_bytes = stats.landing_bytes;
  stats = GroupStats();
  stats.peers.resize(static_cast<std::size_t>(size_));
  stats.landing_bytes = landing_bytes;
}

void GroupImpl::set_trace_capacity(std::size_t capacity) {
  Visit visit(*this);
  for (auto& ring : rings_) ring->set_trace_capacity(capacity);
}

std::vector<TraceEvent> GroupImpl::drain_trace() {
  Visit visit(*this);
  std::vector<TraceEvent> events;
  for (auto& ring : rings_) {
    auto part = ring->drain_trace();
    events.insert(events.end(), part.begin(), part.end());
  }
  return events;
}

}  // namespace headway::comm
