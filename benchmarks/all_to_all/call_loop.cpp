// SPDX-License-Identifier: Apache-2.0

// Timed loop of calls with up to lag + 1 of them in flight.
//
// Idea: start `lag` calls before the clock runs. Each timed step then starts one call and finishes the oldest one, so
// lag + 1 calls are in flight while a rank waits. A duration is the time from the end of one call to the end of the
// next.
//
// Example: lag = 1, 3 timed calls, 2 sets of buffers; s(i) starts a call on set i, f(i) finishes it.
//   s(0) | s(1) f(0) | s(0) f(1) | s(1) f(0) | f(1)
//   The bars are the clock readings: three durations, and the first start and the last finish are not timed.
//
// Invariants: calls finish in the order of their starts. A set is started again only after its last call has finished,
// so there must be at least lag + 1 sets. The durations add up to the whole timed interval.
// With calls in flight they end in bursts. average_bursts() therefore takes means over windows of 16 * (lag + 1) calls,
// or fewer, so that at least 5 windows are left.
// Complexity: O(calls) time and memory; the loop allocates nothing while the clock runs.
#include "call_loop.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace headway::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;

/// Chooses the set of each call: all sets in turn, round and round.
class SetOrder {
 public:
  explicit SetOrder(std::size_t sets) : sets_(sets) {}
  std::size_t next() {
    std::size_t const set = next_;
    next_ = next_ + 1 == sets_ ? 0 : next_ + 1;
    return set;
  }

 private:
  std::size_t sets_;
  std::size_t next_ = 0;
};

}  // namespace

std::size_t default_repetitions(std::size_t bytes_per_rank) {
  /// Number of calls for sizes up to a limit.
  struct Step {
    std::size_t up_to_bytes, repetitions;
  };
  constexpr Step kSteps[] = {{std::size_t{4} << 10, 20'000}, {std::size_t{64} << 10, 5'000},
                             {std::size_t{1} << 20, 1'000},  {std::size_t{8} << 20, 200},
                             {std::size_t{64} << 20, 30},    {std::size_t{128} << 20, 10}};
  for (Step const& step : kSteps) {
    if (bytes_per_rank <= step.up_to_bytes) return step.repetitions;
  }
  return 6;
}

std::size_t warm_up_calls(std::size_t repetitions) { return std::clamp<std::size_t>(repetitions / 2, 2, 10'000); }

void exchange_and_check(Exchange& exchange, std::span<CallBuffers> sets, std::uint64_t round) {
  // Every set gets a round of its own, so that data delivered by another call is detected.
  for (std::size_t set = 0; set < sets.size(); ++set) sets[set].fill(round * sets.size() + set);
  for (std::size_t set = 0; set < sets.size(); ++set) exchange.start(set);
  for (std::size_t set = 0; set < sets.size(); ++set) exchange.finish_oldest();
  for (std::size_t set = 0; set < sets.size(); ++set) sets[set].check(round * sets.size() + set);
}

std::vector<double> time_calls(Exchange& exchange, int lag, std::size_t calls) {
  return time_calls(exchange, lag, calls, static_cast<std::size_t>(lag) + 1);
}

std::vector<double> time_calls(Exchange& exchange, int lag, std::size_t calls, std::size_t num_sets) {
  std::vector<Clock::time_point> ends(calls + 1);
  SetOrder sets(num_sets);
  for (int i = 0; i < lag; ++i) exchange.start(sets.next());
  ends[0] = Clock::now();
  for (std::size_t i = 1; i <= calls; ++i) {
    exchange.start(sets.next());
    exchange.finish_oldest();
    ends[i] = Clock::now();
  }
  for (int i = 0; i < lag; ++i) exchange.finish_oldest();
  std::vector<double> durations_s(calls);
  for (std::size_t i = 0; i < calls; ++i) {
    durations_s[i] = std::chrono::duration<double>(ends[i + 1] - ends[i]).count();
  }
  return durations_s;
}

std::vector<double> average_bursts(std::vector<double> durations_s, int lag) {
  if (lag == 0) return durations_s;
  constexpr std::size_t kBurstsPerWindow = 16;
  constexpr std::size_t kFewestWindows = 5;
  std::size_t const wanted = kBurstsPerWindow * (static_cast<std::size_t>(lag) + 1);
  std::size_t const window = std::clamp<std::size_t>(durations_s.size() / kFewestWindows, 1, wanted);
  std::vector<double> means_s;
  for (std::size_t begin = 0; begin + window <= durations_s.size(); begin += window) {
    auto const first = durations_s.begin() + static_cast<std::ptrdiff_t>(begin);
    auto const sum = std::accumulate(first, first + static_cast<std::ptrdiff_t>(window), 0.0);
    means_s.push_back(sum / static_cast<double>(window));
  }
  return means_s;
}

}  // namespace headway::benchmarks
