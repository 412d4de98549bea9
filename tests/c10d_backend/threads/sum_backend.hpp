// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace headway::c10d_backend {

/// Exchanges tensors between the ranks of a SumBackend, which are threads of one process.
class SumHub final {
 public:
  explicit SumHub(int size) : size_(size) {}

  /// Adds a copy of a rank's tensor to reduction `sequence`.
  void give(std::uint64_t sequence, at::Tensor const& tensor) {
    std::lock_guard const lock(mutex_);
    given_[sequence].push_back(tensor.clone());
    changed_.notify_all();
  }

  /// Blocks until all ranks have given. @throws c10::DistBackendError if they have not within `timeout`.
  at::Tensor sum(std::uint64_t sequence, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    auto& parts = given_[sequence];
    bool const has_all =
        changed_.wait_for(lock, timeout, [&] { return parts.size() == static_cast<std::size_t>(size_); });
    TORCH_CHECK_WITH(DistBackendError, has_all, "sum: a rank gave nothing within ", timeout.count(), " ms");
    auto total = parts[0].clone();
    for (std::size_t i = 1; i < parts.size(); ++i) total.add_(parts[i]);
    return total;
  }

 private:
  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::vector<at::Tensor>> given_;
};

/// Stands for Gloo, to which HeadwayBackend passes reductions. It completes each Work on its own thread, as Gloo does.
/// Unlike Gloo it is compiled with the tests, so that the sanitizers see its accesses.
class SumBackend final : public c10d::Backend {
 public:
  SumBackend(std::shared_ptr<SumHub> hub, int rank, int size) : Backend(rank, size), hub_(std::move(hub)) {
    thread_ = std::thread([this] { run(); });
  }

  /// Completes all pending Works first.
  ~SumBackend() override {
    {
      std::lock_guard const lock(mutex_);
      stops_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  std::string const getBackendName() const override { return "sum"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, c10d::AllreduceOptions const&) override {
    auto work = c10::make_intrusive<SumWork>(getRank(), tensors);
    std::lock_guard const lock(mutex_);
    auto const sequence = num_started_++;
    hub_->give(sequence, tensors[0]);
    tasks_.emplace_back([hub = hub_, sequence, tensors, work, timeout = timeout_.load()] {
      try {
        tensors[0].copy_(hub->sum(sequence, timeout));
        work->complete();
      } catch (std::exception const&) {
        work->fail(std::current_exception());
      }
    });
    changed_.notify_one();
    return work;
  }

 private:
  /// Work of one reduction; its thread completes the future.
  class SumWork final : public c10d::Work {
   public:
    SumWork(int rank, std::vector<at::Tensor> tensors)
        : Work(rank, c10d::OpType::ALLREDUCE),
          tensors_(std::move(tensors)),
          future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

    void complete() {
      finish();
      future_->markCompleted(c10::IValue(tensors_));
    }
    void fail(std::exception_ptr const& error) {
      finish(error);
      future_->setError(error);
    }
    std::vector<at::Tensor> result() override { return tensors_; }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

   private:
    std::vector<at::Tensor> tensors_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stops_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::exchange(tasks_.front(), nullptr);
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::shared_ptr<SumHub> hub_;
  std::atomic<std::chrono::milliseconds> timeout_{std::chrono::seconds(30)};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t num_started_ = 0;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace headway::c10d_backend
