#include "call_loop.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace headway::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;

/// Which set each call of a row takes: one after the other, round and round.
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
  // A round apart for each set: a call that delivers the data of another is found.
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
