// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/dense_model.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::serving {

/// A run of the dense part for one batch.
struct DenseRun {
  std::uint64_t batch = 0;  ///< Number of the batch.
  std::shared_ptr<DenseModel> model{};
  std::size_t part = 0;
  std::vector<InputTensor> inputs{};
  std::shared_ptr<void const> memory{};  ///< Owns the inputs.

  std::vector<OutputRows> outputs{};
  std::string error{};  ///< Empty if the outputs are there.
  std::chrono::steady_clock::time_point began{}, ended{};
};

/// Runs dense parts one after the other beside the caller, so that a slow one stops nothing else. Thread-safe.
///
/// Each model has a thread of its own, which ends before the next model runs. Compiled code keeps objects for each
/// thread until it ends, and with them its library in memory.
class DenseRunner {
 public:
  /// @param on_ended called on another thread after each run
  explicit DenseRunner(std::function<void()> on_ended)
      : on_ended_(std::move(on_ended)), thread_([this](std::stop_token const& stop) { run(stop); }) {}
  DenseRunner(DenseRunner const&) = delete;
  DenseRunner& operator=(DenseRunner const&) = delete;
  /// Waits for the run that has begun.
  ~DenseRunner() = default;

  void start(DenseRun run) {
    {
      std::lock_guard const lock(mutex_);
      waiting_.push_back(std::move(run));
    }
    changed_.notify_one();
  }
  /// The runs that have ended since the last call, in their order.
  [[nodiscard]] std::vector<DenseRun> take_ended() {
    std::lock_guard const lock(mutex_);
    return std::exchange(ended_, {});
  }

 private:
  void run(std::stop_token const& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
      auto const* const model = waiting_.front().model.get();
      lock.unlock();
      std::jthread([&] { run_those_of(model, stop); }).join();
      lock.lock();
    }
  }
  /// Returns when a run of another model waits.
  void run_those_of(DenseModel const* model, std::stop_token const& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
      if (waiting_.front().model.get() != model) return;
      auto next = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      next.began = std::chrono::steady_clock::now();
      try {
        next.outputs = next.model->run(next.part, next.inputs);
      } catch (std::exception const& error) {
        next.error = error.what();
      } catch (...) {
        next.error = "an unknown exception";
      }
      next.ended = std::chrono::steady_clock::now();
      lock.lock();
      ended_.push_back(std::move(next));
      lock.unlock();
      on_ended_();
      lock.lock();
    }
  }

  std::function<void()> on_ended_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<DenseRun> waiting_;
  std::vector<DenseRun> ended_;
  std::jthread thread_;  ///< Last: it uses the others.
};

}  // namespace headway::serving
