#include "progress_thread.hpp"

#include "headway/comm/status.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>

namespace headway::comm {

namespace {

/// How long pending work waits at most for a look when no event announces it.
constexpr int kTickMs = 2;
/// The same for work whose events wake the thread: deadlines only.
constexpr int kDeadlineTickMs = 50;
/// The same for work that wants visits.
constexpr int kVisitTickMs = 1000;
/// Looks without any need before the thread sleeps: while it ticks, notify() costs no system call.
constexpr int kIdleTicks = 10;

}  // namespace

std::shared_ptr<ProgressThread> ProgressThread::shared() {
  // One thread per process is the contract, so this is the one place with state of the process.
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
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_fd_ < 0 || wake_fd_ < 0) throw SystemError("epoll_create1/eventfd", errno, "progress thread");
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event);
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ProgressThread::~ProgressThread() {
  if (getpid() != owner_) {
    thread_.detach();  // After fork() the thread exists in the parent only.
  } else {
    stop_.store(true);
    busy_.store(false);
    notify();
    thread_.join();
  }
  close(epoll_fd_);
  close(wake_fd_);
}

void ProgressThread::attach(BackgroundWork& work) {
  std::lock_guard const lock(mutex_);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &work}};
  if (work.lifeline_fd() >= 0 && epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, work.lifeline_fd(), &event) != 0) {
    throw SystemError("epoll_ctl", errno, "progress thread");
  }
  entries_.push_back({&work, false});
}

void ProgressThread::detach(BackgroundWork& work) {
  if (getpid() != owner_) return;
  std::lock_guard const lock(mutex_);
  auto const entry = std::find_if(entries_.begin(), entries_.end(), [&](Entry const& e) { return e.work == &work; });
  if (entry == entries_.end()) return;
  watch(*entry, false);
  if (work.lifeline_fd() >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, work.lifeline_fd(), nullptr);
  entries_.erase(entry);
}

void ProgressThread::notify() noexcept {
  if (busy_.exchange(true)) return;
  std::uint64_t const one = 1;
  [[maybe_unused]] auto const written = write(wake_fd_, &one, sizeof one);
}

void ProgressThread::watch(Entry& entry, bool activity) {
  if (entry.watches_activity == activity || entry.work->activity_fd() < 0) return;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = entry.work}};
  epoll_ctl(epoll_fd_, activity ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, entry.work->activity_fd(), &event);
  entry.watches_activity = activity;
}

ProgressThread::Needs ProgressThread::step_all() {
  std::lock_guard const lock(mutex_);
  Needs needs;
  for (auto& entry : entries_) {
    entry.work->background_step();
    auto const need = entry.work->background_need();
    watch(entry, need == BackgroundNeed::kEvents);
    needs.most = std::max(needs.most, need);
    needs.visits = needs.visits || entry.work->wants_visits();
  }
  return needs;
}

void ProgressThread::run() noexcept {
  int idle_ticks = 0;
  while (!stop_.load()) {
    busy_.store(true);
    auto needs = step_all();
    idle_ticks = needs.most == BackgroundNeed::kNone ? idle_ticks + 1 : 0;
    bool const may_sleep = idle_ticks > kIdleTicks;
    if (may_sleep) {
      busy_.store(false);
      needs = step_all();  // A need that came between the two found busy_ set and rang no bell.
    }
    std::array<epoll_event, 16> events;
    int const idle_ms = needs.visits ? kVisitTickMs : -1;
    int const timeout_ms = needs.most == BackgroundNeed::kEvents              ? kDeadlineTickMs
                           : may_sleep && needs.most == BackgroundNeed::kNone ? idle_ms
                                                                              : kTickMs;
    epoll_wait(epoll_fd_, events.data(), events.size(), timeout_ms);
    std::uint64_t count = 0;
    [[maybe_unused]] auto const drained = read(wake_fd_, &count, sizeof count);
  }
}

}  // namespace headway::comm
