// SPDX-License-Identifier: Apache-2.0

// Measures the cost of a lag bound by itself: several groups with different bounds take turns over the same sets of
// buffers. The bound `lag` is the number of exchanges that a rank may run ahead of its peers.
//
// With a set of buffers per call in flight, a larger bound would use more memory and leave the cache, and the misses
// would be taken for the cost of the bound. The order of the groups rotates, so that none always runs in the warm cache
// of another.

#include "call_loop.hpp"
#include "measurements.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

constexpr std::size_t kTurns = 40;

/// One bound under test: its group, its sets of buffers and its results.
struct Contender {
  int lag;
  std::size_t num_sets;  ///< Sets of buffers used in turn.
  std::unique_ptr<Exchange> exchange;
  std::vector<double> turns_s;  ///< Mean time of a call in each turn.

  std::vector<double> time(std::size_t calls) { return time_calls(*exchange, lag, calls, num_sets); }
};

/// Connects one group per bound. All of them cycle through the same sets of buffers, as many as the largest bound
/// needs, so only the bound differs. The first contender blocks and reuses one set: this shows the effect of the cache.
std::vector<Contender> connect_contenders(RankContext const& context, std::size_t num_sets) {
  std::vector<Contender> contenders;
  auto const add = [&](int lag, std::size_t sets, std::string const& name) {
    contenders.push_back(
        {.lag = lag, .num_sets = sets, .exchange = context.connect(context, lag, name), .turns_s = {}});
  };
  add(0, 1, "one_set");
  for (int const lag : context.settings.lags) add(lag, num_sets, "lag" + std::to_string(lag));
  return contenders;
}

double mean(std::vector<double> const& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void print_contender(RankContext const& context, Contender const& contender, std::size_t bytes_per_rank) {
  JsonObject point;
  point.add("name", "lag_cost");
  point.add("params", context.params(bytes_per_rank, contender.lag).add("sets", contender.num_sets));
  point.add("system", context.system);
  add_summary(point, summarize(contender.turns_s), bytes_per_rank);
  point.add("turns_s", contender.turns_s);
  print_point(point);
}

void measure_size(RankContext const& context, std::vector<Contender>& contenders, std::span<CallBuffers> sets,
                  std::size_t bytes_per_rank) {
  std::size_t const calls = context.settings.repetitions != 0
                                ? context.settings.repetitions
                                : std::max<std::size_t>(default_repetitions(bytes_per_rank) / 10, 5);
  for (auto& contender : contenders) {
    contender.turns_s.clear();
    contender.exchange->use(sets);
    exchange_and_check(*contender.exchange, sets, 0);
    (void)contender.time(warm_up_calls(calls));
  }
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    // The order rotates, so that no contender always follows the same other one.
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      auto& contender = contenders[(turn + i) % contenders.size()];
      context.barrier.wait();
      (void)contender.time(2);  // The first calls after another group's turn are not timed.
      contender.turns_s.push_back(mean(contender.time(calls)));
    }
  }
  for (auto& contender : contenders) {
    exchange_and_check(*contender.exchange, sets, 1);
    if (context.is_root()) print_contender(context, contender, bytes_per_rank);
  }
}

}  // namespace

void measure_lag_cost(RankContext const& context) {
  int const largest_lag = std::ranges::max(context.settings.lags);
  auto contenders = connect_contenders(context, static_cast<std::size_t>(largest_lag) + 1);
  for (std::size_t const bytes : context.settings.sizes) {
    auto sets = context.make_buffers(bytes, largest_lag);
    measure_size(context, contenders, sets, bytes);
  }
  context.barrier.wait();
}

}  // namespace headway::benchmarks
