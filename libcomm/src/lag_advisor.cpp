#include "lag_advisor.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm {

namespace {

constexpr std::size_t kShortestInterval = 8;
constexpr std::uint64_t kLeastExchanges = 24;  ///< Fewer tell too little.
constexpr std::size_t kRanksPerInterval = 8;

}  // namespace

LagAdvisor::LagAdvisor(int num_ranks, int max_lag_limit)
    : num_ranks_(static_cast<std::size_t>(num_ranks)),
      max_lag_limit_(max_lag_limit),
      capacity_(kWindow + 2 * (static_cast<std::size_t>(max_lag_limit) + 1)),
      // A replay costs as much for many ranks and bounds as it does more often for few.
      interval_(std::max(kShortestInterval, num_ranks_ / kRanksPerInterval)),
      times_(capacity_ * num_ranks_),
      advice_(max_lag_limit) {}

void LagAdvisor::add(std::uint64_t number, int rank, BusyTimes times) {
  times_[number % capacity_ * num_ranks_ + static_cast<std::size_t>(rank)] = times;
}

void LagAdvisor::completed(std::uint64_t number) {
  num_completed_ = number + 1;
  if (num_completed_ < kLeastExchanges || num_completed_ % interval_ != 0) return;
  std::vector<double> times;
  for (int max_lag = 0; max_lag <= max_lag_limit_; ++max_lag) times.push_back(replay_us(max_lag));
  double const good = *std::min_element(times.begin(), times.end()) * (1 + kTolerance);
  auto const smallest = std::ranges::find_if(times, [&](double each) { return each <= good; });
  wanted_[num_looks_++ % kLooks] = static_cast<int>(smallest - times.begin());
  // Up at once, down when all looks agree: what is rare may just not be in the window. And step by step, as the first
  // looks see too few exchanges for ranks to drift far apart, and find bounds that are too small; but where lag does
  // not help at all, a few exchanges tell.
  int const most = *std::ranges::max_element(wanted_);
  advice_ = most == 0 ? 0 : std::max(most, advice_ - 1);
}

double LagAdvisor::replay_us(int max_lag) const {
  std::uint64_t const count = std::min<std::uint64_t>(num_completed_, kWindow);
  if (count == 0) return 0;
  std::uint64_t const first = num_completed_ - count;
  auto const depth = static_cast<std::size_t>(max_lag) + 1;
  std::vector<double> now(num_ranks_);
  std::vector<double> all_started(depth);  ///< Of exchange t, at t modulo the depth.
  // Early exchanges wait for none, so a window is a little shorter under a large bound: measured from where all wait.
  std::uint64_t const warm = std::min<std::uint64_t>(static_cast<std::uint64_t>(max_lag_limit_), count / 2);
  double begin = 0, end = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    end = 0;
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      BusyTimes const& times = times_of(first + i, rank);
      now[rank] += times.before_wait_us;
      // The wait for exchange i - 1 - max_lag comes after the work that overlaps with exchange i - 1.
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

}  // namespace headway::comm
