#pragma once

#include "file_descriptor.hpp"
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

/// How much of the progress thread some work needs while no caller is in the library.
enum class BackgroundNeed {
  kNone,    ///< Nothing is pending, or it needs nobody.
  kLooks,   ///< A look every few milliseconds: something may have to be fetched or posted.
  kEvents,  ///< Somebody waits for the outcome: wake up when something arrives.
};

/// Work that goes on while no caller is in the library.
class BackgroundWork {
 public:
  virtual ~BackgroundWork() = default;
  /// Lock-free.
  [[nodiscard]] virtual BackgroundNeed background_need() const = 0;
  /// Moves the work on; never blocks for long.
  virtual void background_step() noexcept = 0;
  /// Whether it wants a step every second, also without need.
  [[nodiscard]] virtual bool wants_visits() const = 0;
  /// Readable when a peer was lost, a notice came or a socket has input.
  [[nodiscard]] virtual int lifeline_fd() const = 0;
  /// Readable when, besides, something arrived.
  [[nodiscard]] virtual int activity_fd() const = 0;
};

/// The one thread of a process that watches lifelines and covers work nobody waits for. Shared by all groups; it ends
/// with the last of them.
///
/// It steps a work when one of the work's descriptors is readable or when the work's need is due. Between steps it
/// sleeps in epoll_wait() for as long as the most urgent need allows, at first without end.
///
/// A need that rises must not be slept through. The thread decides how long to sleep, says so in `sleep_ms_`, and only
/// then looks whether a request came since it began to look at the needs. A caller does the reverse: it counts its
/// request, then looks whether the thread sleeps for too long. Both use sequentially consistent operations, so at least
/// one of the two sees the other. tests/model/sleeping.pml checks this.
///
/// Locks: `mutex_` guards the entries and is held during steps; the locks of the works come after it.
class ProgressThread {
 public:
  static std::shared_ptr<ProgressThread> shared();
  /// @throws SystemError if the system has no thread or descriptor left.
  ProgressThread();
  ~ProgressThread();
  ProgressThread(ProgressThread const&) = delete;
  ProgressThread& operator=(ProgressThread const&) = delete;

  void attach(BackgroundWork& work);
  /// After it returns, `work` is not used any more. Must not be called with a lock that background_step() takes.
  void detach(BackgroundWork& work);

  /// Says that some work's need has risen and wants a step within `patience`. Costs a system call only if the thread
  /// sleeps for longer. Takes no lock.
  void notify(std::chrono::milliseconds patience) noexcept;
  /// Starts or stops stepping `work` when its activity_fd() is readable. Takes no lock; calls for one work must not
  /// overlap.
  void watch_activity(BackgroundWork& work, bool watch) noexcept;

  /// Time between steps of a work with BackgroundNeed::kLooks.
  static constexpr std::chrono::milliseconds kLookInterval{2};
  /// The same for kEvents, whose descriptors wake the thread: deadlines only.
  static constexpr std::chrono::milliseconds kDeadlineInterval{50};

 private:
  struct Entry {
    BackgroundWork* work;
    Clock::time_point stepped_at{};
    bool has_event = false;
  };

  void run() noexcept;
  /// Steps what is due. @returns how long to sleep, in milliseconds; -1: without end.
  int step_due(std::span<epoll_event const> events);
  void note_events(std::span<epoll_event const> events);
  /// @returns the time to sleep where the most urgent work wants a step after `shortest`; -1: without end.
  [[nodiscard]] int sleep_for(std::chrono::milliseconds shortest);

  pid_t owner_;
  FileDescriptor epoll_, wake_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  int idle_rounds_ = 0;                      ///< Used by the thread only: rounds since something was needed.
  std::atomic<std::uint64_t> requests_ = 0;  ///< Counts notify(); partner: `sleep_ms_`.
  std::atomic<int> sleep_ms_ = 0;            ///< How long the thread sleeps, or is about to; 0: it is awake.
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace headway::comm
