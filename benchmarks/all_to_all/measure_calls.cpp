// SPDX-License-Identifier: Apache-2.0

// Measures the time per all-to-all for each size: warm-up calls, then timed ones. A rank may run `lag` calls ahead of
// its peers, so lag + 1 calls are in flight. With lag > 0 calls complete in bursts, so times are averaged over windows
// of several bursts before they are summarised. A point has the times of rank 0, and the median of the slowest rank.
// Data is checked before and after, untimed.

#include "call_loop.hpp"
#include "measurements.hpp"

#include <algorithm>
#include <vector>

namespace headway::benchmarks {

namespace {

void measure_size(RankContext const& context, Exchange& exchange, std::size_t bytes_per_rank) {
  int const lag = context.settings.lag;
  std::size_t const calls =
      context.settings.repetitions != 0 ? context.settings.repetitions : default_repetitions(bytes_per_rank);
  auto sets = context.make_buffers(bytes_per_rank, lag);
  exchange.use(sets);
  exchange_and_check(exchange, sets, 0);
  context.barrier.wait();
  (void)time_calls(exchange, lag, warm_up_calls(calls));
  context.barrier.wait();
  auto const summary = summarize(average_bursts(time_calls(exchange, lag, calls), lag));
  context.barrier.wait();
  exchange_and_check(exchange, sets, 1);

  // gather() returns one column per value, with an entry for each rank. Here it is one value.
  auto const medians = context.barrier.gather(std::vector{summary.median_s})[0];
  if (!context.is_root()) return;
  JsonObject point;
  point.add("name", "all_to_all").add("params", context.params(bytes_per_rank, lag)).add("system", context.system);
  add_summary(point, summary, bytes_per_rank);
  point.add("slowest_rank_median_s", *std::max_element(medians.begin(), medians.end()));
  print_point(point);
}

}  // namespace

void measure_calls(RankContext const& context) {
  auto const exchange = context.connect(context, context.settings.lag, "calls");
  for (std::size_t const bytes : context.settings.sizes) measure_size(context, *exchange, bytes);
  context.barrier.wait();
}

}  // namespace headway::benchmarks
