#include "callback_thread.hpp"

#include "headway/comm/status.hpp"
#include "signal_mask.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

namespace headway::comm {

CallbackThread::CallbackThread() : owner_(getpid()), queue_(std::make_shared<Queue>()) {}

CallbackThread::~CallbackThread() {
  if (!thread_.joinable()) return;
  if (getpid() != owner_) {  // After fork() the thread exists only in the parent; the lock may be held.
    thread_.detach();
    static_cast<void>(new (std::nothrow) std::shared_ptr<Queue>(std::move(queue_)));  // Leaked on purpose: see above.
    return;
  }
  {
    std::lock_guard const lock(queue_->mutex);
    queue_->is_closed = true;
  }
  queue_->changed.notify_one();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // A callback is destroying its own group.
  } else {
    thread_.join();
  }
}

void CallbackThread::ensure_started() {
  if (thread_.joinable()) return;
  BlockedSignals const blocked;
  try {
    thread_ = std::thread([queue = queue_] { run(*queue); });
  } catch (std::system_error const& error) {
    throw SystemError("pthread_create", error.code().value(), "the thread that runs callbacks of operations");
  }
}

void CallbackThread::submit(std::function<void()> callback) {
  {
    std::lock_guard const lock(queue_->mutex);
    queue_->callbacks.push_back(std::move(callback));
  }
  queue_->changed.notify_one();
}

void CallbackThread::run(Queue& queue) noexcept {
  pthread_setname_np(pthread_self(), "headway_done");
  std::unique_lock lock(queue.mutex);
  for (;;) {
    queue.changed.wait(lock, [&] { return !queue.callbacks.empty() || queue.is_closed; });
    if (queue.callbacks.empty()) return;
    auto callback = std::move(queue.callbacks.front());
    queue.callbacks.pop_front();
    lock.unlock();
    try {
      callback();
    } catch (std::exception const& error) {
      std::fprintf(stderr, "headway: a callback of an operation failed: %s\n", error.what());
    }
    callback = nullptr;  // Destroyed without the lock: it may own its group.
    lock.lock();
  }
}

}  // namespace headway::comm
