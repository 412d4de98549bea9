// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"

#include <sched.h>

#include <chrono>
#include <utility>

namespace headway::comm {

/// Tells the core that this is a spin loop.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Decides how a waiter spends its time. With cores to spare: polls at once, then with pauses. With more ranks than
/// cores: yields. Then sleeps.
class Backoff {
 public:
  enum class Step { kLookAgain, kPause, kYield, kSleep };

  explicit Backoff(bool cores_are_shared) : cores_are_shared_(cores_are_shared) {}

  /// Next step. kSleep comes once `spin_time` has passed since the first clock reading or the last restart(), and every
  /// kLongestSpin in any case. Reads the clock only every kClockInterval steps.
  Step next(std::chrono::microseconds spin_time) {
    if (++steps_ < kFreeSteps) return cores_are_shared_ ? Step::kYield : Step::kLookAgain;
    if (steps_ % kClockInterval != 0) return cores_are_shared_ ? Step::kYield : Step::kPause;
    auto const now = Clock::now();
    if (steps_ == kFreeSteps) started_ = slept_ = now;
    if (steps_ == kFreeSteps || std::exchange(restarts_, false)) spin_began_ = now;
    bool const sleeps = now - spin_began_ > spin_time || now - slept_ > kLongestSpin;
    if (sleeps) slept_ = now;
    return sleeps ? Step::kSleep : Step::kYield;  // Yields even with spare cores: the peer may be on this core.
  }
  /// Starts the spin time anew: the missing data is on its way.
  void restart() { restarts_ = true; }
  /// Has so much time passed that one more clock reading does not matter?
  [[nodiscard]] bool took_time() const { return started_ != Clock::time_point() || (cores_are_shared_ && steps_ > 0); }
  /// When the clock was first read; the epoch: the wait was too short for that.
  [[nodiscard]] Clock::time_point slow_since() const { return started_; }

 private:
  /// Steps before the clock is read.
  static constexpr unsigned kFreeSteps = 64;
  static constexpr unsigned kClockInterval = 16;
  static constexpr std::chrono::milliseconds kLongestSpin{100};

  bool cores_are_shared_;
  bool restarts_ = false;
  unsigned steps_ = 0;
  Clock::time_point started_{}, spin_began_{}, slept_{};
};

}  // namespace headway::comm
