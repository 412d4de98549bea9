#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

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
  /// Readable when a peer was lost or a notice came.
  [[nodiscard]] virtual int lifeline_fd() const = 0;
  /// Readable when, besides, something arrived.
  [[nodiscard]] virtual int activity_fd() const = 0;
};

/// The one thread of a process that watches lifelines and covers work nobody waits for. It sleeps while none is
/// pending. Shared by all groups; it ends with the last of them.
class ProgressThread {
 public:
  static std::shared_ptr<ProgressThread> shared();
  ProgressThread();
  ~ProgressThread();
  ProgressThread(ProgressThread const&) = delete;
  ProgressThread& operator=(ProgressThread const&) = delete;

  void attach(BackgroundWork& work);
  /// After it returns, `work` is not used any more. Must not be called with a lock that background_step() takes.
  void detach(BackgroundWork& work);
  /// Makes the thread look at background_need() again. Cheap while the thread is busy anyway.
  void notify() noexcept;

 private:
  struct Entry {
    BackgroundWork* work;
    bool watches_activity;
  };

  void run() noexcept;
  struct Needs {
    BackgroundNeed most = BackgroundNeed::kNone;
    bool visits = false;
  };
  Needs step_all();
  void watch(Entry& entry, bool activity);

  pid_t owner_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::atomic<bool> busy_ = false;  ///< The thread will look at all entries soon by itself.
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace headway::comm
