// SPDX-License-Identifier: Apache-2.0

// A group's work on the progress thread.
//
// Every call into the group ends with update(): it tells the progress thread whether this group needs nothing, a step
// at intervals (polls), or a step at each arrival (events). For events the endpoint is armed: a put of a peer then
// rings the doorbell, which makes activity_fd() readable, and the thread watches that. Its step, background_step(),
// lets the endpoint handle its sockets, polls, and checks deadlines.
//
// Puts over sockets ring no doorbell: control_fd() is readable, and the thread watches it. While a caller waits, the
// caller reads the sockets. Then the thread does not watch, as it would wake up for each arrival, and find nothing.

#include "group/background_progress.hpp"

#include "group/group_core.hpp"

#include <mutex>
#include <string>
#include <utility>

namespace headway::comm {

namespace {

/// Number of steps without need for events after which the progress thread stops watching for callbacks. A program that
/// uses futures needs them again soon, and arming costs a system call. For waiters it stops at once: they have waited
/// for longer than that call takes, and peers must not ring for each message of the fast exchanges that follow.
constexpr int kIdleStepsWatched = 32;

}  // namespace

BackgroundProgress::BackgroundProgress(GroupCore& core, Endpoint const& endpoint,
                                       std::shared_ptr<ProgressThread> thread)
    : core_(core),
      control_fd_(endpoint.control_fd()),
      activity_fd_(endpoint.activity_fd()),
      receives_by_polling_(endpoint.receives_by_polling()),
      wants_keep_alive_(endpoint.wants_keep_alive()),
      thread_(std::move(thread)) {}

void BackgroundProgress::start() {
  if (thread_) thread_->attach(*this);
}

void BackgroundProgress::stop() {
  if (thread_) thread_->detach(*this);
}

void BackgroundProgress::notify_soon() noexcept {
  if (thread_) thread_->notify(std::chrono::milliseconds(0));
}

// An observer, the device group, has deadlines of its own, which these steps check.
bool BackgroundProgress::wants_regular_steps() const {
  return (wants_keep_alive_ && !core_.has_failed()) || core_.has_observer();
}

BackgroundNeed BackgroundProgress::current_need() const {
  if (core_.has_failed()) return BackgroundNeed::kNone;
  auto const& channels = core_.channels();
  bool const needs_events = core_.needs_events() || (receives_by_polling_ && channels.is_pending());
  // An overdue RTS, or credit that came back, announces itself by no event.
  if (channels.needs_polling(needs_events))
    return needs_events ? BackgroundNeed::kEventsAndPolls : BackgroundNeed::kPolls;
  return needs_events ? BackgroundNeed::kEvents : BackgroundNeed::kNone;
}

void BackgroundProgress::update() {
  if (!thread_) return;
  // Done under the same lock as the change of the need: from here on an arrival rings, whatever the progress thread
  // does.
  if (core_.needs_events() && !is_armed_) {
    watch();
    core_.progress();  // An arrival before arm() took effect rings no doorbell.
  }
  serves_callbacks_ = serves_callbacks_ || core_.has_callbacks();
  auto const need = current_need();
  auto const before = need_.load(std::memory_order_relaxed);
  if (need == before) return;
  need_.store(need, std::memory_order_relaxed);
  if (need < before) return;
  // Without needs_events() the events are socket input, which control_fd() reports.
  bool const has_events = need == BackgroundNeed::kEvents && (is_armed_ || !core_.needs_events());
  thread_->notify(has_events ? ProgressThread::kDeadlineInterval : ProgressThread::kPollInterval);
}

void BackgroundProgress::begin_wait() noexcept {
  if (thread_ && receives_by_polling_ && num_waits_++ == 0) thread_->watch_control(*this, false);
}

void BackgroundProgress::end_wait() noexcept {
  if (thread_ && receives_by_polling_ && --num_waits_ == 0) thread_->watch_control(*this, true);
}

void BackgroundProgress::watch() {
  is_armed_ = true;
  serves_callbacks_ = false;
  num_idle_steps_ = 0;
  core_.waiters().arm();
  thread_->watch_activity(*this, true);
}

void BackgroundProgress::unwatch() {
  is_armed_ = false;
  thread_->watch_activity(*this, false);
  core_.waiters().disarm();
}

void BackgroundProgress::background_step() noexcept {
  try {
    if (core_.has_observer() && core_.has_failed()) {  // First, because the code below may throw.
      GroupCore::ProgressLock const lock(core_);
      core_.remind_observer();
    }
    // Another thread is in the library and does the same work. The step can be skipped; the next one comes soon.
    if (background_need() == BackgroundNeed::kPolls && !std::unique_lock(core_.mutex(), std::try_to_lock).owns_lock()) {
      return;
    }
    GroupCore::ProgressLock const lock(core_);
    auto& endpoint = core_.context().endpoint();
    // Does not block: lets the endpoint handle socket input. It takes wake-ups, also those for the leader (the waiting
    // thread that sleeps in the endpoint), so the lock is held until progress() has found what they announced.
    endpoint.sleep(Deadline::min());
    core_.waiters().wake_leader_if_done();  // Its wake-up may have been taken before it woke.
    if (wants_keep_alive_ && !core_.has_failed()) endpoint.keep_alive();
    core_.progress();
    auto const now = Clock::now();
    core_.check_deadlines(now);
    core_.revoke_rts(now);
    bool const is_needed = core_.needs_events();
    num_idle_steps_ = is_needed ? 0 : num_idle_steps_ + 1;
    if (is_needed && !is_armed_) {
      watch();
      core_.progress();
    } else if (is_armed_ && num_idle_steps_ > (serves_callbacks_ && !receives_by_polling_ ? kIdleStepsWatched : 0)) {
      unwatch();
    }
  } catch (std::exception const& error) {
    core_.fail_in_background(std::string("progress thread: ") + error.what());
  }
}

}  // namespace headway::comm
