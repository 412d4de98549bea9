// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

struct epoll_event;

namespace headway::comm {

/// How much a work needs the progress thread while no caller is in the library. Ordered by urgency.
enum class BackgroundNeed {
  kNone,            ///< Nothing is pending, or it needs no help.
  kPolls,           ///< A step every few milliseconds: something may have to be fetched or posted.
  kEvents,          ///< A step at each arrival: somebody waits for the outcome.
  kEventsAndPolls,  ///< Both.
};

/// Work that must go on while no caller is in the library: one group.
class BackgroundWork {
 public:
  virtual ~BackgroundWork() = default;
  /// Present need. Lock-free.
  [[nodiscard]] virtual BackgroundNeed background_need() const = 0;
  /// Moves the work on. Never blocks for long.
  virtual void background_step() noexcept = 0;
  /// Does it want a step every second even without a need?
  [[nodiscard]] virtual bool wants_regular_steps() const = 0;
  /// Descriptor that is readable when a peer was lost, an OOB message came or a socket has input. -1: none.
  [[nodiscard]] virtual int control_fd() const = 0;
  /// Like control_fd(), but also readable when a put arrived. -1: none.
  [[nodiscard]] virtual int activity_fd() const = 0;
};

/// The one thread of a process that watches control sockets and moves on work that nobody waits for. All groups share
/// it; it ends with the last of them.
///
/// It steps a work when one of its descriptors is readable or its need is due. Between steps it sleeps in epoll_wait()
/// for as long as the most urgent need allows, without limit if there is none.
///
/// A rising need must not be slept through (tests/model/sleeping.pml checks this). The thread publishes its sleep time
/// in `sleep_ms_`, then checks whether a request came since it began to look at the needs. A caller does the reverse:
/// it counts its request, then checks whether the thread sleeps too long. All these accesses are sequentially
/// consistent, so at least one side sees the other.
///
/// Locks: `mutex_` guards the entries and is held during steps. The locks of the works come after it.
class ProgressThread {
 public:
  /// The thread of this process; a forked child gets its own.
  static std::shared_ptr<ProgressThread> shared();
  /// @throws SystemError if the system has no thread or descriptor left.
  ProgressThread();
  ~ProgressThread();
  ProgressThread(ProgressThread const&) = delete;
  ProgressThread& operator=(ProgressThread const&) = delete;

  /// Adds a work. @throws SystemError if epoll refuses its descriptor.
  void attach(BackgroundWork& work);
  /// Removes a work. It is not used after the call. The caller must not hold a lock that background_step() takes.
  void detach(BackgroundWork& work);

  /// Announces that some work's need has risen and must be served within `patience`. Makes a system call only if the
  /// thread sleeps longer than that. Takes no lock.
  void notify(std::chrono::milliseconds patience) noexcept;
  /// Starts or stops stepping `work` when its activity_fd() is readable. Takes no lock. Calls for one work must not
  /// overlap.
  void watch_activity(BackgroundWork& work, bool watch) noexcept;
  /// The same for its control_fd(), which is watched from attach() on.
  void watch_control(BackgroundWork& work, bool watch) noexcept;

  /// Time between steps of a work with kPolls or kEventsAndPolls.
  static constexpr std::chrono::milliseconds kPollInterval{2};
  /// Time between steps of a work with kEvents, for deadlines only: descriptors wake the thread for the rest.
  static constexpr std::chrono::milliseconds kDeadlineInterval{50};

 private:
  /// State of one attached work.
  struct Entry {
    BackgroundWork* work;
    Clock::time_point stepped_at{};
    bool has_event = false;
  };

  void run() noexcept;
  /// Steps the works that are due. @returns how long to sleep, in milliseconds; -1: without limit.
  int step_due(std::span<epoll_event const> events);
  /// Marks the works whose descriptors are readable.
  void mark_events(std::span<epoll_event const> events);
  /// @returns the sleep time in milliseconds if the most urgent work wants a step after `shortest`; -1: without limit.
  [[nodiscard]] int sleep_for(std::chrono::milliseconds shortest);

  /// Process that made the thread.
  pid_t owner_;
  base::FileDescriptor epoll_, wake_;
  /// Guards entries_; see the lock order above.
  std::mutex mutex_;
  std::vector<Entry> entries_;
  int idle_rounds_ = 0;                      ///< Rounds since something was needed. Used by the thread only.
  std::atomic<std::uint64_t> requests_ = 0;  ///< Number of notify() calls; partner: `sleep_ms_`.
  std::atomic<int> sleep_ms_ = 0;  ///< Milliseconds that the thread sleeps or is about to sleep; 0: it is awake.
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace headway::comm
