// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace headway::comm {

/// Runs the callbacks of one group's operations, in the order in which the operations ended, with no lock of the
/// library held. So a callback may block, start operations and destroy groups, its own included. It delays only later
/// callbacks of its group.
///
/// The thread starts with the first registered callback and sleeps between callbacks.
class CallbackThread final {
 public:
  CallbackThread();
  CallbackThread(CallbackThread const&) = delete;
  CallbackThread& operator=(CallbackThread const&) = delete;
  /// Waits until all submitted callbacks have run, except on the callback thread itself.
  ~CallbackThread();

  /// Starts the thread if it does not run yet. Call it before accepting a callback, so that submit() never needs a new
  /// thread. Not thread-safe.
  /// @throws SystemError if the system has no thread left; a later call tries again.
  void ensure_started();
  /// Queues a callback. Requires ensure_started(). Thread-safe.
  void submit(std::function<void()> callback);

 private:
  /// Queue shared by the group and the thread.
  struct Queue {
    std::mutex mutex;  ///< Last in the lock order: no other lock is taken and nothing is called under it.
    std::condition_variable changed;
    std::deque<std::function<void()>> callbacks;
    bool is_closed = false;
  };
  static void run(Queue& queue) noexcept;

  /// Process that made this object; in a forked child the thread does not exist.
  pid_t owner_;
  std::shared_ptr<Queue> queue_;  ///< Shared with the thread, which may outlive this object.
  std::thread thread_;
};

}  // namespace headway::comm
