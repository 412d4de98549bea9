#pragma once

#include "headway/comm/endpoint.hpp"

#include <sched.h>

#include <chrono>

namespace headway::comm {

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How a waiter spends its time: looks again at once, then with pauses between looks (cores to spare), or yields (more
/// ranks than cores); then sleeps.
class Backoff {
 public:
  enum class Step { kLookAgain, kPause, kYield, kSleep };

  explicit Backoff(bool cores_are_shared) : cores_are_shared_(cores_are_shared) {}

  /// What to do next. Looks at the clock only every kClockInterval steps.
  Step next() {
    if (++steps_ < kFreeSteps) return cores_are_shared_ ? Step::kYield : Step::kLookAgain;
    if (steps_ == kFreeSteps) started_ = Clock::now();
    if (steps_ % kClockInterval != 0) return cores_are_shared_ ? Step::kYield : Step::kPause;
    if (Clock::now() - started_ > kSpinTime) return Step::kSleep;
    return Step::kYield;  // Also with cores to spare: the peer may have been put on this very one.
  }
  /// Whether so much time may have passed that one more look at the clock costs nothing.
  [[nodiscard]] bool took_time() const { return started_ != Clock::time_point() || (cores_are_shared_ && steps_ > 0); }
  /// When the wait became slow enough to be worth a look at the clock; the epoch if it did not.
  [[nodiscard]] Clock::time_point slow_since() const { return started_; }

 private:
  static constexpr unsigned kFreeSteps = 64;
  static constexpr unsigned kClockInterval = 16;
  static constexpr std::chrono::microseconds kSpinTime{200};

  bool cores_are_shared_;
  unsigned steps_ = 0;
  Clock::time_point started_{};
};

}  // namespace headway::comm
