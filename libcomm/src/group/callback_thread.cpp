// SPDX-License-Identifier: Apache-2.0

// The thread that runs callbacks, from its start to its end. It may end in one of four ways:
//
// - Another thread destroys the group: the queue is closed, the thread runs what is left in it, and is joined.
// - A callback destroys its own group: a thread cannot join itself, so it is detached. It returns from that callback,
//   empties the queue and ends; it shares the queue, so nothing that it uses has gone.
// - A forked child destroys its copy of the group: the child has no such thread, and if the thread held the queue's
//   mutex at the fork, it stays locked for ever. So the queue is neither locked nor destroyed.
// - It was never started, because no operation had a callback: there is nothing to do.
//
// Invariant: no mutex is held while a callback runs or is destroyed, so a callback may call into any group.

#include "group/callback_thread.hpp"

#include "headway/base/log.hpp"
#include "headway/comm/status.hpp"
#include "system/signal_mask.hpp"

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
    base::log(base::LogLevel::kWarning, "group", -1, "the thread that runs callbacks of operations cannot be made");
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
