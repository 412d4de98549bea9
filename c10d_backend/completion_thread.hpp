#pragma once

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
/// The thread starts with the first task and sleeps between tasks. It keeps the queue alive, so destruction never
/// waits.
class CompletionThread final {
 public:
  CompletionThread() : queue_(std::make_shared<Queue>()) {}
  CompletionThread(CompletionThread const&) = delete;
  CompletionThread& operator=(CompletionThread const&) = delete;
  /// Tasks that are queued still run.
  ~CompletionThread();

  void submit(std::function<void()> task);

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool started = false;
    bool closed = false;
  };
  /// Not noexcept: Python ends threads that reach for it during its own exit by unwinding them.
  static void run(std::shared_ptr<Queue> const& queue);

  std::shared_ptr<Queue> queue_;
};

}  // namespace headway::c10d_backend
