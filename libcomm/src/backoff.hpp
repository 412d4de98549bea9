#pragma once

#include "headway/comm/endpoint.hpp"

#include <sched.h>

#include <chrono>
#include <utility>

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

  /// What to do next: sleep after `spin_time`, counted from the start or the last restart(), and every kLongestSpin in
  /// any case. Looks at the clock only every kClockInterval steps.
  Step next(std::chrono::microseconds spin_time) {
    if (++steps_ < kFreeSteps) return cores_are_shared_ ? Step::kYield : Step::kLookAgain;
    if (steps_ % kClockInterval != 0) return cores_are_shared_ ? Step::kYield : Step::kPause;
    auto const now = Clock::now();
    if (steps_ == kFreeSteps) started_ = slept_ = now;
    if (steps_ == kFreeSteps || std::exchange(restarts_, false)) spin_began_ = now;
    bool const sleeps = now - spin_began_ > spin_time || now - slept_ > kLongestSpin;
    if (sleeps) slept_ = now;
    return sleeps ? Step::kSleep : Step::kYield;  // Also with cores to spare: the peer may be on this very one.
  }
  /// What is lacking is on its way.
  void restart() { restarts_ = true; }
  /// Whether so much time may have passed that one more look at the clock costs nothing.
  [[nodiscard]] bool took_time() const { return started_ != Clock::time_point() || (cores_are_shared_ && steps_ > 0); }
  /// When the wait became slow enough to be worth a look at the clock; the epoch if it did not.
  [[nodiscard]] Clock::time_point slow_since() const { return started_; }

 private:
  static constexpr unsigned kFreeSteps = 64;
  static constexpr unsigned kClockInterval = 16;
  static constexpr std::chrono::milliseconds kLongestSpin{100};

  bool cores_are_shared_;
  bool restarts_ = false;
  unsigned steps_ = 0;
  Clock::time_point started_{}, spin_began_{}, slept_{};
};

}  // namespace headway::comm
