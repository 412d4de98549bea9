// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace headway::base {

/// A shared mutex that lets no new reader in while a writer waits, so readers that overlap do not keep a writer out.
/// glibc's std::shared_mutex does. For std::shared_lock and std::lock_guard. A thread must not lock it twice.
class FairSharedMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    ++num_waiting_writers_;
    changed_.wait(lock, [this] { return num_readers_ == 0 && !has_writer_; });
    --num_waiting_writers_;
    has_writer_ = true;
  }
  void unlock() {
    {
      std::lock_guard const lock(mutex_);
      has_writer_ = false;
    }
    changed_.notify_all();
  }
  void lock_shared() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_writers_ == 0 && !has_writer_; });
    ++num_readers_;
  }
  void unlock_shared() {
    {
      std::lock_guard const lock(mutex_);
      if (--num_readers_ > 0) return;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t num_readers_ = 0, num_waiting_writers_ = 0;
  bool has_writer_ = false;
};

}  // namespace headway::base
