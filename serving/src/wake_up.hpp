// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace headway::serving {

/// Wakes a thread that sleeps. Callbacks of a group share it with the loop, and may call it after the loop has ended.
class WakeUp {
 public:
  void ring() {
    {
      std::lock_guard const lock(mutex_);
      has_rung_ = true;
    }
    changed_.notify_one();
  }
  /// Sleeps until ring() is called, or has been since the last sleep, or until `time`.
  void sleep_until(std::chrono::steady_clock::time_point time) {
    std::unique_lock lock(mutex_);
    auto const has_rung = [this] { return has_rung_; };
    // wait_until() with the largest time would overflow.
    if (time == std::chrono::steady_clock::time_point::max()) {
      changed_.wait(lock, has_rung);
    } else {
      changed_.wait_until(lock, time, has_rung);
    }
    has_rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_rung_ = false;
};

}  // namespace headway::serving
