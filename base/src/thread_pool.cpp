// SPDX-License-Identifier: Apache-2.0

// Fork-join thread pool: threads and calling thread take the indices of one call from a shared counter.
//
// Idea: run() publishes the task, resets the counter and wakes all threads. Everyone, the caller included, takes
// indices with fetch-add until none is left. The last thread to finish wakes the caller. Only one call has the threads:
// another one that comes meanwhile (try_lock fails) runs its tasks alone, instead of waiting.
//
// Example: two threads and the caller, five tasks. The caller takes 0 and 3, thread 1 takes 1 and 4, thread 2 takes 2.
//
// Invariants: task_ and count_ change only while num_busy_ is 0 and run_mutex_ is held; every thread takes part in
//   every run. A task must not call run(): the caller's thread holds run_mutex_, and locking it twice is undefined.
//   After fork() the child has no threads and its copies of the mutexes may be locked, so it uses none of them.
// Memory order: publishing and joining are ordered by mutex_; the counter only hands out indices.
// Complexity: one wake-up and one join for each call, one atomic operation for each task.

#include "headway/base/thread_pool.hpp"

#include "headway/base/status.hpp"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::base {

/// The threads and the state that they share.
class ThreadPool::Workers {
 public:
  explicit Workers(int num_threads);
  Workers(Workers const&) = delete;
  Workers& operator=(Workers const&) = delete;
  ~Workers() { stop(); }

  [[nodiscard]] std::size_t size() const { return threads_.size(); }
  /// ThreadPool::run() on the threads. @returns false, with nothing done, if another call has the threads
  bool run(std::size_t count, std::function<void(std::size_t)> const& task);

 private:
  void stop() noexcept;
  /// Loop of a thread.
  void work();
  /// Takes tasks until none is left. Keeps the first exception, and skips the tasks after it.
  void take_tasks();

  std::mutex run_mutex_;                   ///< Held by the call that has the threads; taken before `mutex_`.
  std::mutex mutex_;                       ///< Guards the fields down to `error_`.
  std::condition_variable begins_, ends_;  ///< A run begins, or the pool ends; all threads finished a run.
  std::uint64_t num_runs_ = 0;             ///< Runs so far; a thread waits for it to change.
  std::size_t num_busy_ = 0;               ///< Threads that have not finished the present run.
  bool is_over_ = false;                   ///< The pool is being destroyed; threads return.
  std::exception_ptr error_;

  // Set by run() under `mutex_` before it wakes the threads. All but `next_` are constant during a run.
  std::function<void(std::size_t)> const* task_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_ = 0;  ///< Next index to take.

  std::vector<std::thread> threads_;
};

ThreadPool::Workers::Workers(int num_threads) {
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {  // The operating system may refuse a thread.
    stop();
    throw;
  }
}

void ThreadPool::Workers::stop() noexcept {
  {
    std::lock_guard const lock(mutex_);
    is_over_ = true;
  }
  begins_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

bool ThreadPool::Workers::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  std::unique_lock const turn(run_mutex_, std::try_to_lock);
  if (!turn) return false;
  {
    std::lock_guard const lock(mutex_);
    task_ = &task;
    count_ = count;
    next_ = 0;
    num_busy_ = threads_.size();
    ++num_runs_;
  }
  begins_.notify_all();
  take_tasks();
  std::unique_lock lock(mutex_);
  ends_.wait(lock, [this] { return num_busy_ == 0; });
  if (auto const error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  return true;
}

void ThreadPool::Workers::work() {
  std::uint64_t num_runs = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begins_.wait(lock, [&] { return is_over_ || num_runs_ != num_runs; });
      if (is_over_) return;
      num_runs = num_runs_;
    }
    take_tasks();
    std::lock_guard const lock(mutex_);
    if (--num_busy_ == 0) ends_.notify_one();
  }
}

void ThreadPool::Workers::take_tasks() {
  try {
    for (std::size_t i = next_++; i < count_; i = next_++) (*task_)(i);
  } catch (...) {
    next_ = count_;
    std::lock_guard const lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

ThreadPool::ThreadPool(int num_threads) : process_(::getpid()) {
  expects(num_threads >= 1, "num_threads must be at least 1, not " + std::to_string(num_threads));
  workers_ = std::make_unique<Workers>(num_threads);
}

ThreadPool::~ThreadPool() {
  // A forked child has no threads to join, and its copies of the mutexes may be locked for ever: leak `workers_`.
  if (is_forked()) static_cast<void>(workers_.release());
}

bool ThreadPool::is_forked() const { return ::getpid() != process_; }

int ThreadPool::num_threads() const { return static_cast<int>(workers_->size()) + 1; }

void ThreadPool::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  if (count > 1 && workers_->size() > 0 && !is_forked() && workers_->run(count, task)) return;
  for (std::size_t i = 0; i < count; ++i) task(i);
}

}  // namespace headway::base
