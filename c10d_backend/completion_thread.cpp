#include "completion_thread.hpp"

#include <pthread.h>

#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

namespace headway::c10d_backend {

CompletionThread::~CompletionThread() {
  {
    std::lock_guard const lock(queue_->mutex);
    queue_->closed = true;
  }
  queue_->changed.notify_one();
}

void CompletionThread::submit(std::function<void()> task) {
  std::lock_guard const lock(queue_->mutex);
  queue_->tasks.push_back(std::move(task));
  queue_->changed.notify_one();
  if (std::exchange(queue_->started, true)) return;
  std::thread([queue = queue_] { run(queue); }).detach();
}

void CompletionThread::run(std::shared_ptr<Queue> const& queue) {
  pthread_setname_np(pthread_self(), "headway_done");
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return !queue->tasks.empty() || queue->closed; });
    if (queue->tasks.empty()) return;
    auto task = std::move(queue->tasks.front());
    queue->tasks.pop_front();
    lock.unlock();
    try {
      task();
      task = nullptr;
    } catch (std::exception const& error) {
      std::fprintf(stderr, "headway: a callback of a future failed: %s\n", error.what());
    }
    lock.lock();
  }
}

}  // namespace headway::c10d_backend
