#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace headway::comm {

/// Time as the processor counts it, which is cheaper to read than a clock of the system, and made into a time of the
/// wall clock only when somebody asks.
class FlightClock {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Never 0 in practice, so that 0 can stand for "not yet".
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

  /// Turns ticks read since the clock was made into times. The rate is what passed since then; it is anchored at the
  /// moment of this object, so that the newest times are the most exact.
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
    std::uint64_t ticks_;
    Time time_;
    double ns_per_tick_;
  };

 private:
  using Steady = std::chrono::steady_clock;
  [[nodiscard]] double ns_per_tick(std::uint64_t now) const {
    double const passed_ns = std::chrono::duration<double, std::nano>(Steady::now() - made_at_).count();
    return now > made_at_ticks_ ? passed_ns / static_cast<double>(now - made_at_ticks_) : 0;
  }

  std::uint64_t made_at_ticks_ = ticks();
  Steady::time_point made_at_ = Steady::now();
};

}  // namespace headway::comm
