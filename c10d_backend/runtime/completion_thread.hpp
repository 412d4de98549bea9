// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/exit_hooks.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace headway::c10d_backend {

/// Runs tasks that follow the completion of an operation when no caller waits for it: callbacks of futures,
/// copies from temporaries to outputs, and the release of tensors. All of these may need the interpreter lock or call
/// into the group. So neither libcomm's progress thread nor a thread that happens to be in the library may run them.
///
/// The thread starts at the first use and sleeps between tasks. It keeps the queue alive, so the destructor never
/// waits.
class CompletionThread final {
 public:
  CompletionThread();
  CompletionThread(CompletionThread const&) = delete;
  CompletionThread& operator=(CompletionThread const&) = delete;
  /// Queued tasks still run.
  ~CompletionThread();

  /// Starts the thread if needed. Call it before an operation may submit a task, because submit() cannot report an
  /// error.
  /// @throws SystemError if the process cannot have more threads; the next call tries again.
  void start();
  /// Queues `task`. start() must have succeeded. After the program has ended, the task is neither run nor freed.
  void submit(std::function<void()> task);

 private:
  /// Task queue. At program exit, queued tasks still run. If one of them does not end, those behind it are never freed.
  struct Queue final : ExitHook, std::enable_shared_from_this<Queue> {
    [[nodiscard]] Order order() const override { return Order::kCallbacks; }
    [[nodiscard]] bool end(Deadline deadline) override;

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool is_running = false;
    bool is_closed = false;     ///< The thread ends once the queue is empty.
    bool is_abandoned = false;  ///< Set by end(): tasks are no longer run or freed.
  };
  /// Not noexcept: during its own exit, Python ends threads that take its lock by unwinding them.
  static void run(std::shared_ptr<Queue> const& queue);
  static void run_task(std::function<void()> task);

  std::shared_ptr<Queue> queue_;
};

}  // namespace headway::c10d_backend
