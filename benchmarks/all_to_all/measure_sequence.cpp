// SPDX-License-Identifier: Apache-2.0

// Measures rows of exchanges: `count` of them, one after the other, from a common start to the end of the last.
//
// A row of one shows what an exchange costs when ranks begin together, as they do after a collective. In a long row
// ranks drift apart by the disturbances of the host, and a lag bound above 0 lets them run ahead of each other: the
// time per exchange falls with the length of the row if lag helps. time_calls() does not show that, since it fills the
// pipeline before the clock runs.

#include "call_loop.hpp"
#include "measurements.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace headway::benchmarks {

namespace {

/// Rows of calls per point: more rows if they are short.
std::size_t default_rows(std::size_t count) { return std::clamp<std::size_t>(20'000 / count, 3, 200); }

/// Seconds per call of a row of `count` calls. All ranks start the row together.
double time_row(RankContext const& context, Exchange& exchange, std::size_t count) {
  int const lag = context.settings.lag;
  auto const sets = static_cast<std::size_t>(lag) + 1;
  context.barrier.wait();
  auto const start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    exchange.start(i % sets);
    if (i + 1 >= sets) exchange.finish_oldest();
  }
  for (std::size_t i = 0; i < std::min(count, sets - 1); ++i) exchange.finish_oldest();
  std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(count);
}

void measure_count(RankContext const& context, Exchange& exchange, std::size_t bytes_per_rank, std::size_t count) {
  std::size_t const rows = context.settings.repetitions != 0 ? context.settings.repetitions : default_rows(count);
  std::vector<double> per_call_s;
  for (std::size_t row = 0; row < rows; ++row) per_call_s.push_back(time_row(context, exchange, count));
  auto const summary = summarize(per_call_s);
  // gather() returns one column per value, with an entry for each rank. Here it is one value.
  auto const medians = context.barrier.gather(std::vector{summary.median_s})[0];
  if (!context.is_root()) return;
  JsonObject point;
  auto params = context.params(bytes_per_rank, context.settings.lag);
  point.add("name", "sequence").add("params", params.add("calls", count)).add("system", context.system);
  add_summary(point, summary, bytes_per_rank);
  point.add("slowest_rank_median_s", *std::max_element(medians.begin(), medians.end()));
  print_point(point);
}

}  // namespace

void measure_sequence(RankContext const& context) {
  int const lag = context.settings.lag;
  auto const exchange = context.connect(context, lag, "sequence");
  for (std::size_t const bytes : context.settings.sizes) {
    auto sets = context.make_buffers(bytes, lag);
    exchange->use(sets);
    exchange_and_check(*exchange, sets, 0);
    (void)time_calls(*exchange, lag, warm_up_calls(default_repetitions(bytes)));
    for (std::size_t const count : context.settings.counts) measure_count(context, *exchange, bytes, count);
    exchange_and_check(*exchange, sets, 1);
  }
  context.barrier.wait();
}

}  // namespace headway::benchmarks
