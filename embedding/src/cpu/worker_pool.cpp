#include "cpu/worker_pool.hpp"

#include "headway/comm/status.hpp"

#include <string>
#include <utility>

namespace headway::embedding {

WorkerPool::WorkerPool(int num_threads) {
  comm::expects(num_threads >= 1, "num_threads must be at least 1, not " + std::to_string(num_threads));
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {  // Of the operating system's limits.
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() noexcept {
  {
    std::lock_guard const lock(mutex_);
    is_over_ = true;
  }
  begins_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WorkerPool::run(std::size_t count, std::function<void(std::size_t)> const& task) {
  std::unique_lock const turn(run_mutex_, std::try_to_lock);
  if (count <= 1 || threads_.empty() || !turn) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
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
}

void WorkerPool::work() {
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

void WorkerPool::take_tasks() {
  try {
    for (std::size_t i = next_++; i < count_; i = next_++) (*task_)(i);
  } catch (...) {
    next_ = count_;
    std::lock_guard const lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace headway::embedding
