// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace headway::comm {

/// Microseconds that a rank was busy between two exchanges. Time spent waiting does not count.
struct BusyTimes {
  std::uint32_t before_wait_us = 0;  ///< From the start of the previous exchange to the first wait after it.
  std::uint32_t after_wait_us = 0;   ///< All later busy time, up to the start of this exchange.
};

/// Recommends max_lag: the smallest one whose replayed time is close to the best. lag_advisor.cpp explains the replay.
/// All ranks have the same times, so they reach the same result without communication. Used under the group's lock.
class LagAdvisor {
 public:
  /// `max_lag_limit`: largest value to consider.
  LagAdvisor(int num_ranks, int max_lag_limit);

  /// Adds the busy times of `rank` before exchange `seq`, which is at most 2 (max_lag_limit + 1) above all completed
  /// ones.
  void add(std::uint64_t seq, int rank, BusyTimes times);
  /// Completes exchange `seq`, the one after the last completed: the times of all ranks are known.
  void completed(std::uint64_t seq);

  /// Recommended max_lag: the largest that the last kLooks replays found, approached from above one step per replay.
  /// It is the limit until the first replay, since a value that is too small costs more than one that is too large.
  [[nodiscard]] int advice() const { return advice_; }

  /// Replayed time of the latest exchanges under `max_lag`, in microseconds per exchange.
  [[nodiscard]] double replay_us(int max_lag) const;

  /// A value is good if its time is at most this fraction above the best.
  static constexpr double kTolerance = 0.025;
  static constexpr std::size_t kWindow = 128;  ///< Number of exchanges that are replayed.
  static constexpr std::size_t kLooks = 4;     ///< Number of replays whose results count.

 private:
  [[nodiscard]] BusyTimes const& times_of(std::uint64_t seq, std::size_t rank) const {
    return times_[seq % capacity_ * num_ranks_ + rank];
  }

  std::size_t num_ranks_;
  int max_lag_limit_;
  std::size_t capacity_;          ///< Number of exchanges whose times are kept.
  std::size_t interval_;          ///< Exchanges between two replays.
  std::vector<BusyTimes> times_;  ///< (capacity, num_ranks) Indexed by exchange number mod capacity.
  std::uint64_t num_completed_ = 0;
  std::array<int, kLooks> wanted_{};  ///< The max_lag that each of the last replays found.
  std::size_t num_looks_ = 0;
  int advice_;
};

/// Measures the BusyTimes of this rank. All times are microseconds of one monotonic clock.
class BusyClock {
 public:
  /// A wait for an exchange of this channel begins.
  void wait_began(std::int64_t now_us) {
    pause_began(now_us);
    has_waited_ = true;
  }
  /// A wait for something else begins. Busy time after it still counts as time before the first wait.
  void pause_began(std::int64_t now_us) {
    (has_waited_ ? times_.after_wait_us : times_.before_wait_us) += since_mark(now_us);
  }
  /// A wait or a pause ended: the rank is busy again.
  void wait_ended(std::int64_t now_us) { mark_us_ = now_us; }
  /// Starts an exchange. @returns the busy times since the previous start.
  BusyTimes exchange_started(std::int64_t now_us);

 private:
  /// Microseconds since the mark; 0 if there is none.
  [[nodiscard]] std::uint32_t since_mark(std::int64_t now_us) const {
    return mark_us_ < 0 || now_us < mark_us_ ? 0 : static_cast<std::uint32_t>(now_us - mark_us_);
  }

  BusyTimes times_;
  std::int64_t mark_us_ = -1;  ///< When the rank last became busy; -1: not yet.
  bool has_waited_ = false;
};

/// Feeds a LagAdvisor with the exchanges of one channel.
class LagObserver {
 public:
  LagObserver(int rank, int num_ranks, int max_lag_limit) : rank_(rank), advisor_(num_ranks, max_lag_limit) {}

  /// The calling thread starts exchange `seq`. @returns its busy times since the previous start.
  BusyTimes started(std::uint64_t seq);
  /// The message of `source` for exchange `seq` arrived with these busy times.
  void arrived(std::uint64_t seq, int source, BusyTimes times) { advisor_.add(seq, source, times); }
  void completed(std::uint64_t seq) { advisor_.completed(seq); }
  /// The calling thread begins or ends a wait, for an exchange of this channel (`is_own`) or of another one. Waits for
  /// others count only for the thread that starts the exchanges here.
  void wait_began(bool is_own);
  void wait_ended(bool is_own);
  /// LagAdvisor::advice().
  [[nodiscard]] int advice() const { return advisor_.advice(); }

 private:
  int rank_;
  LagAdvisor advisor_;
  BusyClock clock_;
  std::thread::id starter_;  ///< Thread that started the newest exchange.
};

}  // namespace headway::comm
