// SPDX-License-Identifier: Apache-2.0

// A thread that runs what follows the completion of an operation.
//
// Example: a user calls future.then(f) and goes on. When the operation completes, libcomm's progress thread submits a
// task and returns to the network at once. This thread then takes the interpreter lock, which may take long, and runs
// f.
//
// Invariants:
// - Tasks run one at a time, in the order in which they were submitted.
// - The thread owns the queue together with this object, so the destructor need not join: that could deadlock if the
//   caller holds the interpreter lock for which a task waits.
// - At program exit, end() lets queued tasks run until its deadline. Tasks that are left then, or come later, are
//   neither run nor freed: both may need an interpreter that no longer exists.

#include "runtime/completion_thread.hpp"

#include <headway/comm/status.hpp>

#include <pthread.h>

#include <cstdio>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

namespace headway::c10d_backend {

CompletionThread::CompletionThread() : queue_(std::make_shared<Queue>()) { register_exit_hook(queue_); }

CompletionThread::~CompletionThread() {
  {
    std::lock_guard const lock(queue_->mutex);
    queue_->is_closed = true;
  }
  queue_->changed.notify_all();
}

void CompletionThread::start() {
  std::lock_guard const lock(queue_->mutex);
  if (queue_->is_running || queue_->is_closed) return;
  try {
    std::thread([queue = queue_] { run(queue); }).detach();
  } catch (std::system_error const& error) {
    throw comm::SystemError("std::thread", error.code().value(), "the thread that runs callbacks cannot be made");
  }
  queue_->is_running = true;
}

void CompletionThread::submit(std::function<void()> task) {
  {
    std::lock_guard const lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
  }
  queue_->changed.notify_all();
}

bool CompletionThread::Queue::end(Deadline deadline) {
  // Tasks that are still queued, or come later, may own tensors. They must not be freed after Python has ended.
  keep_forever(shared_from_this());
  std::unique_lock lock(mutex);
  is_closed = true;
  changed.notify_all();
  bool const has_ended = changed.wait_until(lock, deadline, [this] { return !is_running; });
  is_abandoned = true;
  return has_ended;
}

void CompletionThread::run(std::shared_ptr<Queue> const& queue) {
  pthread_setname_np(pthread_self(), "headway_done");
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return !queue->tasks.empty() || queue->is_closed; });
    if (queue->tasks.empty() || queue->is_abandoned) break;
    auto task = std::move(queue->tasks.front());
    queue->tasks.pop_front();
    lock.unlock();
    run_task(std::move(task));
    lock.lock();
  }
  queue->is_running = false;
  queue->changed.notify_all();
}

void CompletionThread::run_task(std::function<void()> task) {
  try {
    task();
  } catch (std::exception const& error) {
    std::fprintf(stderr, "headway: a callback of a future failed: %s\n", error.what());
  }
}

}  // namespace headway::c10d_backend
