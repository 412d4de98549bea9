#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm {

/// How long a rank was busy between two exchanges, in microseconds; what it spent waiting does not count.
struct BusyTimes {
  std::uint32_t before_wait_us = 0;  ///< From the start of the exchange before to the first wait after it.
  std::uint32_t after_wait_us = 0;   ///< The rest, up to the start of this exchange.
};

/// Tells which bound is worth having: replays the latest exchanges with the busy times of all ranks, once for each
/// bound, finds the smallest whose time is close to the best, and takes the largest of several such looks.
///
/// The replay is the recurrence of a loop that runs ahead by k exchanges: a rank starts exchange t when it is through
/// with its work, and then waits until all ranks have started exchange t - k. Exchanges cost nothing in it. All ranks
/// know the same times, so they come to the same bound without asking each other.
class LagAdvisor {
 public:
  /// `max_lag_limit`: the largest bound to look at.
  LagAdvisor(int num_ranks, int max_lag_limit);

  /// What `rank` did before exchange `number`, which is above all completed ones by at most 2 (max_lag_limit + 1).
  void add(std::uint64_t number, int rank, BusyTimes times);
  /// Exchange `number`, the one after the last completed, has the times of all ranks.
  void completed(std::uint64_t number);

  /// The largest of the bounds that the last kLooks looks found to be the smallest within kTolerance of the best,
  /// approached from above one by one; the limit before there is anything to tell from, since a bound that is too small
  /// costs more than one that is too large.
  [[nodiscard]] int advice() const { return advice_; }

  /// Time of the latest exchanges under `max_lag`, replayed, in microseconds an exchange.
  [[nodiscard]] double replay_us(int max_lag) const;

  static constexpr double kTolerance = 0.025;
  static constexpr std::size_t kWindow = 128;  ///< Exchanges that are replayed.
  static constexpr std::size_t kLooks = 4;     ///< Looks that count.

 private:
  [[nodiscard]] BusyTimes const& times_of(std::uint64_t number, std::size_t rank) const {
    return times_[number % capacity_ * num_ranks_ + rank];
  }

  std::size_t num_ranks_;
  int max_lag_limit_;
  std::size_t capacity_;          ///< Exchanges whose times are kept.
  std::size_t interval_;          ///< Exchanges between two replays.
  std::vector<BusyTimes> times_;  ///< (capacity, num_ranks)
  std::uint64_t num_completed_ = 0;
  std::array<int, kLooks> wanted_{};  ///< What each look found, the oldest overwritten.
  std::size_t num_looks_ = 0;
  int advice_;
};

/// Measures a rank's BusyTimes; all times in microseconds of one clock.
class BusyClock {
 public:
  void wait_began(std::int64_t now_us) {
    pause_began(now_us);
    has_waited_ = true;
  }
  /// Of a wait for something else: what comes after it is still work before the first wait.
  void pause_began(std::int64_t now_us) {
    (has_waited_ ? times_.after_wait_us : times_.before_wait_us) += since_mark(now_us);
  }
  /// A wait or a pause ended.
  void wait_ended(std::int64_t now_us) { mark_us_ = now_us; }
  /// @returns the times since the start before.
  BusyTimes exchange_started(std::int64_t now_us);

 private:
  [[nodiscard]] std::uint32_t since_mark(std::int64_t now_us) const {
    return mark_us_ < 0 || now_us < mark_us_ ? 0 : static_cast<std::uint32_t>(now_us - mark_us_);
  }

  BusyTimes times_;
  std::int64_t mark_us_ = -1;  ///< When the rank was last handed back its thread.
  bool has_waited_ = false;
};

}  // namespace headway::comm
