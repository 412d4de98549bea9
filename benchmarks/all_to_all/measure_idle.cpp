// SPDX-License-Identifier: Apache-2.0

// Measures what a group costs while it does nothing: the share of a core that each rank burns.
//
// Two states are measured. First nothing is pending, and all ranks sleep in the benchmark: what is burnt then is the
// library's own threads. Then all ranks but 0 wait in an exchange for rank 0, which sleeps: a library that polls
// burns a core per rank, one that sleeps until the data comes burns almost nothing. CPU time counts all threads of a
// process.

#include "call_loop.hpp"
#include "measurements.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

namespace headway::benchmarks {

namespace {

/// CPU time of all threads of this process in seconds.
double processor_time_s() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Runs `wait` on all ranks. @returns the share of a core that each rank used meanwhile.
template <typename Wait>
std::vector<double> shares_of_core(RankContext const& context, Wait wait) {
  context.barrier.wait();
  double const burnt_before_s = processor_time_s();
  auto const start = std::chrono::steady_clock::now();
  wait();
  double const burnt_s = processor_time_s() - burnt_before_s;
  std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
  // gather() returns one column per value, with an entry for each rank. Here it is one value.
  return context.barrier.gather(std::vector{burnt_s / elapsed.count()})[0];
}

void print_shares(RankContext const& context, std::string_view state, std::vector<double> shares) {
  if (!context.is_root()) return;
  double const worst = *std::max_element(shares.begin(), shares.end());
  double const idle_s = context.settings.idle_s;
  for (double& share : shares) share *= idle_s;  // To CPU seconds, the unit of a point's times.
  auto const summary = summarize(shares);
  JsonObject point;
  auto params = context.params(context.settings.sizes.front(), context.settings.lag);
  params.add("state", state).add("idle_s", idle_s);
  point.add("name", "idle").add("params", params).add("system", context.system);
  point.add("median_s", summary.median_s).add("p5_s", summary.p5_s).add("p95_s", summary.p95_s);
  point.add("samples", summary.samples).add("rate", worst).add("unit", "cores burnt by the worst rank");
  print_point(point);
}

}  // namespace

void measure_idle(RankContext const& context) {
  auto const exchange = context.connect(context, context.settings.lag, "idle");
  auto sets = context.make_buffers(context.settings.sizes.front(), context.settings.lag);
  exchange->use(sets);
  exchange_and_check(*exchange, sets, 0);
  std::chrono::duration<double> const idle(context.settings.idle_s);

  print_shares(context, "nothing pending", shares_of_core(context, [&] { std::this_thread::sleep_for(idle); }));

  // Rank 0 is late. It sleeps and uses no CPU time, so its share does not hide that of the others.
  auto const waiting = shares_of_core(context, [&] {
    if (context.is_root()) std::this_thread::sleep_for(idle);
    exchange->start(0);
    exchange->finish_oldest();
  });
  print_shares(context, "waiting for rank 0", waiting);
  exchange_and_check(*exchange, sets, 1);
  context.barrier.wait();
}

}  // namespace headway::benchmarks
