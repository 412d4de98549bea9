// SPDX-License-Identifier: Apache-2.0

// Recommends max_lag, the bound on how many exchanges a rank may run ahead of its peers, by replaying what all ranks
// did.
//
// Idea: each all-to-all message carries the busy times of its sender, so every rank knows the times of all ranks. Every
// rank replays the latest 128 exchanges with each max_lag k, as a loop that keeps up to k exchanges pending. Rank r
// starts exchange t after its work, and passes its wait once all ranks have started exchange t - k - 1:
//   now[r] = max(now[r] + before_wait[t][r], all_started[t - k - 1]) + after_wait[t][r]
//   all_started[t] = max over r of now[r]
// Transfers take no time. The result is the smallest k whose time is within 2.5% of the best.
//
// Example: two ranks are busy for 4, 0, 4, 0 ms and 0, 4, 0, 4 ms after their waits.
//   k = 0: all_started is 4, 8, 12, 16, so 4 ms per exchange.  k = 1: it is 4, 4, 8, 8, so 2 ms per exchange.
//   k = 2 also takes 2 ms: the result is 1.
//
// Invariants: all ranks have the same times, so they find the same result. All k are compared on the same work.
//   advice = max(largest of the last 4 results, advice - 1), or 0 if these are all 0: it rises at once and falls
//   slowly.
// Complexity: 128 * ranks * (max_lag_limit + 1) steps per replay; one replay per 8 exchanges, fewer above 64 ranks.
// Source: the recurrence is listing 2 of Dichev et al., arXiv 2512.19342, with free transfers. Parameters and
// measurements: docs/design/adaptive_lag.md.

#include "observe/lag_advisor.hpp"

#include "headway/comm/endpoint.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace headway::comm {

namespace {

/// Exchanges between two replays: at least 8, and one more for every 8 ranks above 64.
constexpr std::size_t kShortestInterval = 8;
constexpr std::uint64_t kLeastExchanges = 24;  ///< Number of exchanges before the first replay; fewer tell too little.
constexpr std::size_t kRanksPerInterval = 8;

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

LagAdvisor::LagAdvisor(int num_ranks, int max_lag_limit)
    : num_ranks_(static_cast<std::size_t>(num_ranks)),
      max_lag_limit_(max_lag_limit),
      capacity_(kWindow + 2 * (static_cast<std::size_t>(max_lag_limit) + 1)),
      // The cost of replays per exchange stays about constant: more ranks make a replay longer and rarer.
      interval_(std::max(kShortestInterval, num_ranks_ / kRanksPerInterval)),
      times_(capacity_ * num_ranks_),
      advice_(max_lag_limit) {}

void LagAdvisor::add(std::uint64_t seq, int rank, BusyTimes times) {
  times_[seq % capacity_ * num_ranks_ + static_cast<std::size_t>(rank)] = times;
}

void LagAdvisor::completed(std::uint64_t seq) {
  num_completed_ = seq + 1;
  if (num_completed_ < kLeastExchanges || num_completed_ % interval_ != 0) return;
  std::vector<double> times;
  for (int max_lag = 0; max_lag <= max_lag_limit_; ++max_lag) times.push_back(replay_us(max_lag));
  double const good = *std::min_element(times.begin(), times.end()) * (1 + kTolerance);
  auto const smallest = std::ranges::find_if(times, [&](double each) { return each <= good; });
  wanted_[num_looks_++ % kLooks] = static_cast<int>(smallest - times.begin());
  // Rise at once, because the window may miss rare events; fall only when all replays agree. Fall step by step: the
  // first replays see too few exchanges for ranks to drift far apart, and find values that are too small. Few exchanges
  // suffice to see that lag does not help at all.
  int const most = *std::ranges::max_element(wanted_);
  advice_ = most == 0 ? 0 : std::max(most, advice_ - 1);
}

double LagAdvisor::replay_us(int max_lag) const {
  std::uint64_t const count = std::min<std::uint64_t>(num_completed_, kWindow);
  if (count == 0) return 0;
  std::uint64_t const first = num_completed_ - count;
  auto const depth = static_cast<std::size_t>(max_lag) + 1;
  std::vector<double> now(num_ranks_);
  std::vector<double> all_started(depth);  ///< Entry t % depth: when all ranks had started exchange t.
  // The first exchanges of a window wait for none, which makes it shorter with a large max_lag. So the measurement
  // begins where every replay waits.
  std::uint64_t const warm = std::min<std::uint64_t>(static_cast<std::uint64_t>(max_lag_limit_), count / 2);
  double begin = 0, end = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    end = 0;
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      BusyTimes const& times = times_of(first + i, rank);
      now[rank] += times.before_wait_us;
      // After exchange i - 1 started, the loop waits for exchange i - 1 - max_lag. before_wait_us overlaps with
      // exchange i - 1.
      if (i >= depth) now[rank] = std::max(now[rank], all_started[i % depth]);
      now[rank] += times.after_wait_us;
      end = std::max(end, now[rank]);
    }
    all_started[i % depth] = end;
    if (i == warm) begin = end;
  }
  return (end - begin) / static_cast<double>(std::max<std::uint64_t>(count - warm - 1, 1));
}

BusyTimes BusyClock::exchange_started(std::int64_t now_us) {
  pause_began(now_us);
  mark_us_ = now_us;
  has_waited_ = false;
  return std::exchange(times_, {});
}

BusyTimes LagObserver::started(std::uint64_t seq) {
  starter_ = std::this_thread::get_id();
  BusyTimes const times = clock_.exchange_started(now_us());
  advisor_.add(seq, rank_, times);
  return times;
}

void LagObserver::wait_began(bool is_own) {
  if (is_own) {
    clock_.wait_began(now_us());
  } else if (starter_ == std::this_thread::get_id()) {
    clock_.pause_began(now_us());
  }
}

void LagObserver::wait_ended(bool is_own) {
  if (is_own || starter_ == std::this_thread::get_id()) clock_.wait_ended(now_us());
}

}  // namespace headway::comm
