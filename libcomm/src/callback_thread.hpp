#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace headway::comm {

/// Runs the callbacks of one group's operations, in the order in which the operations ended, under no lock of the
/// library. A callback may therefore block, start operations and destroy groups, its own included, and delays nobody
/// but the later callbacks of its group.
///
/// The thread starts with the first callback that is registered and sleeps between callbacks.
class CallbackThread final {
 public:
  CallbackThread();
  CallbackThread(CallbackThread const&) = delete;
  CallbackThread& operator=(CallbackThread const&) = delete;
  /// Waits until all submitted callbacks have run, except on the callback thread itself.
  ~CallbackThread();

  /// Starts the thread if it does not run. Called before a callback is accepted, so that submit() needs no thread.
  /// Not thread-safe. @throws SystemError if the system has no thread left; a later call tries again.
  void ensure_started();
  /// Queues a callback. Needs ensure_started(). Thread-safe.
  void submit(std::function<void()> callback);

 private:
  struct Queue {
    std::mutex mutex;  ///< The last of all locks: nothing is called while it is held.
    std::condition_variable changed;
    std::deque<std::function<void()>> callbacks;
    bool is_closed = false;
  };
  static void run(Queue& queue) noexcept;

  pid_t owner_;
  std::shared_ptr<Queue> queue_;  ///< Shared with the thread, which may outlive this object.
  std::thread thread_;
};

}  // namespace headway::comm
