// SPDX-License-Identifier: Apache-2.0

// The thread that goes on with exchanges while no caller is in the library. The hard part is to sleep long and yet
// wake in time.
//
// How long it sleeps is decided by the most urgent group: 2 ms if something may have to be fetched, posted or revoked,
// 50 ms if only deadlines have to be watched while descriptors report the rest, 1 s for groups that want regular steps,
// and without limit otherwise. A need that has just ended counts for ten more rounds of 2 ms: in a loop of exchanges it
// comes and goes with each one, and waking a thread costs a system call.
//
// Example of the race that sleep_ms_ and requests_ decide (all accesses are sequentially consistent):
//
//   thread                                     caller
//   reads requests_: 7
//   looks at the needs: none
//                                              its need rises; requests_ becomes 8
//                                              reads sleep_ms_: 0, the thread is awake; no system call
//   writes sleep_ms_: without limit
//   reads requests_: 8, not 7; sleeps 0 ms
//
// If the caller had read sleep_ms_ after the thread wrote it, it would have woken the thread through the eventfd.
//
// Invariant: mutex_ is held during steps, so detach() returns only when no step of that work runs.

#include "channel/progress_thread.hpp"

#include "headway/base/log.hpp"
#include "headway/comm/status.hpp"
#include "system/signal_mask.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

namespace headway::comm {

namespace {

/// Interval of works that only want regular steps.
constexpr std::chrono::milliseconds kRegularStepInterval{1000};
/// Number of rounds without a need before the thread sleeps for long. A need that comes and goes with each exchange
/// must not cost a system call each time.
constexpr int kIdleRounds = 10;

constexpr auto kNever = std::chrono::milliseconds::max();

/// Longest time between two steps of `work`.
std::chrono::milliseconds interval_of(BackgroundWork const& work) {
  switch (work.background_need()) {
    case BackgroundNeed::kPolls:
    case BackgroundNeed::kEventsAndPolls:
      return ProgressThread::kPollInterval;
    case BackgroundNeed::kEvents:
      return ProgressThread::kDeadlineInterval;
    case BackgroundNeed::kNone:
      break;
  }
  return work.wants_regular_steps() ? kRegularStepInterval : kNever;
}

}  // namespace

std::shared_ptr<ProgressThread> ProgressThread::shared() {
  // The contract is one thread per process, so this is the one place with process-wide state.
  static std::mutex mutex;
  static std::weak_ptr<ProgressThread> current;
  std::lock_guard const lock(mutex);
  auto thread = current.lock();
  if (thread == nullptr || thread->owner_ != getpid()) {
    thread = std::make_shared<ProgressThread>();
    current = thread;
  }
  return thread;
}

ProgressThread::ProgressThread() : owner_(getpid()) {
  epoll_ = base::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  wake_ = base::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid()) throw SystemError("epoll_create1/eventfd", errno, "progress thread");
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  BlockedSignals const blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (std::system_error const& error) {
    base::log(base::LogLevel::kWarning, "progress", -1, "the progress thread cannot be made");
    throw SystemError("pthread_create", error.code().value(), "progress thread");
  }
}

ProgressThread::~ProgressThread() {
  if (getpid() != owner_) {
    thread_.detach();  // After fork() the thread exists only in the parent.
  } else {
    stop_.store(true);
    notify(std::chrono::milliseconds(0));
    thread_.join();
  }
}

void ProgressThread::attach(BackgroundWork& work) {
  std::lock_guard const lock(mutex_);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &work}};
  if (work.control_fd() >= 0 && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, work.control_fd(), &event) != 0) {
    throw SystemError("epoll_ctl", errno, "progress thread");
  }
  entries_.push_back({.work = &work});
  if (work.wants_regular_steps()) notify(kRegularStepInterval);
}

void ProgressThread::detach(BackgroundWork& work) {
  if (getpid() != owner_) return;
  std::lock_guard const lock(mutex_);
  if (std::erase_if(entries_, [&](Entry const& entry) { return entry.work == &work; }) == 0) return;
  if (work.control_fd() >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, work.control_fd(), nullptr);
  watch_activity(work, false);
}

void ProgressThread::notify(std::chrono::milliseconds patience) noexcept {
  requests_.fetch_add(1, std::memory_order_seq_cst);  // Partner: run().
  if (sleep_ms_.load(std::memory_order_seq_cst) <= patience.count()) return;
  std::uint64_t const one = 1;
  [[maybe_unused]] auto const written = write(wake_.get(), &one, sizeof one);
}

void ProgressThread::watch_activity(BackgroundWork& work, bool watch) noexcept {
  if (work.activity_fd() < 0) return;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &work}};
  epoll_ctl(epoll_.get(), watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, work.activity_fd(), &event);
}

void ProgressThread::watch_control(BackgroundWork& work, bool watch) noexcept {
  epoll_event event{.events = watch ? EPOLLIN : 0U, .data = {.ptr = &work}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, work.control_fd(), &event);
}

void ProgressThread::mark_events(std::span<epoll_event const> events) {
  for (auto const& event : events) {
    if (event.data.ptr == nullptr) {
      std::uint64_t count = 0;
      [[maybe_unused]] auto const drained = read(wake_.get(), &count, sizeof count);
      continue;
    }
    // A work that was detached after epoll_wait() returned has no entry any more.
    for (auto& entry : entries_) entry.has_event = entry.has_event || entry.work == event.data.ptr;
  }
}

int ProgressThread::step_due(std::span<epoll_event const> events) {
  std::lock_guard const lock(mutex_);
  mark_events(events);
  auto const now = Clock::now();
  auto shortest = kNever;
  for (auto& entry : entries_) {
    auto const before = interval_of(*entry.work);
    // A step is due after half its interval: a sleep may end slightly early, and the step must not wait for the next
    // one.
    bool const is_due = before != kNever && now - entry.stepped_at >= before / 2;
    if (std::exchange(entry.has_event, false) || is_due) {
      entry.stepped_at = now;
      entry.work->background_step();
    }
    // A need that this step has met counts once more, since the next one mostly follows at once.
    shortest = std::min({shortest, before, interval_of(*entry.work)});
  }
  return sleep_for(shortest);
}

int ProgressThread::sleep_for(std::chrono::milliseconds shortest) {
  bool const is_idle = shortest > kDeadlineInterval;
  idle_rounds_ = is_idle ? idle_rounds_ + 1 : 0;
  if (is_idle && idle_rounds_ <= kIdleRounds) shortest = kPollInterval;
  return shortest == kNever ? -1 : static_cast<int>(shortest.count());
}

void ProgressThread::run() noexcept {
  pthread_setname_np(pthread_self(), "headway_progress");
  std::array<epoll_event, 16> events;
  int count = 0;
  while (!stop_.load()) {
    auto const seen = requests_.load(std::memory_order_seq_cst);
    int const sleep_ms = step_due(std::span(events).first(static_cast<std::size_t>(count)));
    sleep_ms_.store(sleep_ms < 0 ? std::numeric_limits<int>::max() : sleep_ms, std::memory_order_seq_cst);
    bool const is_current = requests_.load(std::memory_order_seq_cst) == seen;  // Partner: notify().
    count = std::max(0, epoll_wait(epoll_.get(), events.data(), events.size(), is_current ? sleep_ms : 0));
    sleep_ms_.store(0, std::memory_order_seq_cst);
  }
}

}  // namespace headway::comm
