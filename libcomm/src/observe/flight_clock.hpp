// SPDX-License-Identifier: Apache-2.0

// Clock of flight records. Reading it is one instruction, some 20 cycles; a system clock takes twice that or more,
// and a recorder that is always on reads it several times per operation.

#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace headway::comm {

/// Clock of the flight recorder: processor ticks, which are cheaper to read than a system clock. Ticks become
/// wall-clock times only when records are read.
class FlightClock {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Present tick count. Practically never 0, so 0 can mean "not yet".
  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    std::uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }

  /// Converts ticks to wall-clock times. The tick rate is measured from the making of the clock to the making of this
  /// object. Times count back from this object, so the newest ones are the most exact.
  class Reading {
   public:
    explicit Reading(FlightClock const& clock)
        : ticks_(ticks()), time_(std::chrono::system_clock::now()), ns_per_tick_(clock.ns_per_tick(ticks_)) {}
    [[nodiscard]] Time time() const { return time_; }
    [[nodiscard]] Time time_of(std::uint64_t ticks) const {
      if (ticks == 0) return {};
      auto const age_ns = static_cast<double>(static_cast<std::int64_t>(ticks_ - ticks)) * ns_per_tick_;
      return time_ - std::chrono::duration_cast<Time::duration>(std::chrono::duration<double, std::nano>(age_ns));
    }

   private:
    /// Ticks, wall-clock time and rate when this object was made.
    std::uint64_t ticks_;
    Time time_;
    double ns_per_tick_;
  };

 private:
  using Steady = std::chrono::steady_clock;
  /// Nanoseconds per tick since the clock was made.
  [[nodiscard]] double ns_per_tick(std::uint64_t now) const {
    double const passed_ns = std::chrono::duration<double, std::nano>(Steady::now() - made_at_).count();
    return now > made_at_ticks_ ? passed_ns / static_cast<double>(now - made_at_ticks_) : 0;
  }

  std::uint64_t made_at_ticks_ = ticks();
  Steady::time_point made_at_ = Steady::now();
};

}  // namespace headway::comm
