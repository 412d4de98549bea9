#pragma once

#include "live_parts.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace headway::c10d_backend {

/// Runs what must follow the completion of an operation when no caller waits for it: callbacks of futures, write-backs,
/// the release of tensors. All of these may need the interpreter lock or call into the group, so neither libcomm's
/// progress thread nor a thread that happens to be in the library may run them.
///
/// The thread starts with the first use and sleeps between tasks. It keeps the queue alive, so destruction never waits.
class CompletionThread final {
 public:
  CompletionThread();
  CompletionThread(CompletionThread const&) = delete;
  CompletionThread& operator=(CompletionThread const&) = delete;
  /// Tasks that are queued still run.
  ~CompletionThread();

  /// Makes the thread, unless it is there: before an operation is told to submit a task, as it cannot report an error.
  /// @throws SystemError if the process can have no more threads; the next call tries again.
  void start();
  /// Queues `task`, after a start(). Once the program has ended, the task is neither run nor freed.
  void submit(std::function<void()> task);

 private:
  /// At the program's end, tasks that are queued still run. If one does not end, those behind it are never freed.
  struct Queue final : LivePart, std::enable_shared_from_this<Queue> {
    [[nodiscard]] Order order() const override { return Order::kCallbacks; }
    [[nodiscard]] bool end(Deadline deadline) override;

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool is_running = false;
    bool is_closed = false;
    bool is_abandoned = false;  ///< By end().
  };
  /// Not noexcept: Python ends threads that reach for it during its own exit by unwinding them.
  static void run(std::shared_ptr<Queue> const& queue);
  static void run_task(std::function<void()> task);

  std::shared_ptr<Queue> queue_;
};

}  // namespace headway::c10d_backend
