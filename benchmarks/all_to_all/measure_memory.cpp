// SPDX-License-Identifier: Apache-2.0

// Measures how much memory a group takes: what the library says it reserves, and what the kernel says is resident.
//
// Reserved memory that was never touched has no pages. Resident memory is therefore read three times: before the group
// exists, after it connected, and after enough exchanges to touch each slot. Resident memory is proportional (Pss): a
// page that four ranks map counts as a quarter at each, so the sum over the ranks is right. The buffers of the
// benchmark are filled before the first reading, and cancel out.

#include "call_loop.hpp"
#include "measurements.hpp"

#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

/// Proportional set size of this process in bytes: a shared page counts in parts. NaN if the kernel does not report it.
double proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    if (double kibibytes = 0; word == "Pss:" && file >> kibibytes) return kibibytes * 1024;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double sum(std::vector<double> const& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

void measure_memory(RankContext const& context) {
  int const lag = context.settings.lag;  // Exchanges that a rank may run ahead; lag + 1 calls are in flight.
  std::size_t const bytes = context.settings.sizes.front();
  auto sets = context.make_buffers(bytes, lag);
  for (auto& set : sets) set.fill(0);
  context.barrier.wait();
  double const before = proportional_bytes();
  context.barrier.wait();

  auto const exchange = context.connect(context, lag, "memory");
  exchange->use(sets);
  context.barrier.wait();
  double const connected = proportional_bytes();
  context.barrier.wait();
  // A round has lag + 1 calls, and the library's ring of receive slots has 2 * (lag + 1) for each peer. So two rounds
  // touch every slot that calls of this size use. Four rounds write each of them twice.
  for (std::uint64_t round = 0; round < 4; ++round) exchange_and_check(*exchange, sets, round);
  context.barrier.wait();
  double const used = proportional_bytes();

  auto const reserved = static_cast<double>(exchange->reserved_bytes());
  // One column per value, with an entry for each rank.
  auto const columns = context.barrier.gather(std::array{reserved, connected - before, used - before});
  if (!context.is_root()) return;
  JsonObject point;
  point.add("name", "group_memory").add("params", context.params(bytes, lag)).add("system", context.system);
  point.add("samples", columns[0].size());
  point.add("reserved_bytes", sum(columns[0]));
  point.add("resident_bytes_connected", sum(columns[1])).add("resident_bytes_used", sum(columns[2]));
  // `rate` is a field of every point. Here it repeats reserved_bytes.
  point.add("rate", sum(columns[0])).add("unit", "bytes reserved by all ranks together");
  print_point(point);
}

}  // namespace headway::benchmarks
