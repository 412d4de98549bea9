// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// Timed calls of a point (one measured size) without --repetitions: enough for a steady median, few if a call is long.
std::size_t default_repetitions(std::size_t bytes_per_rank);
/// Calls before the first timed one.
std::size_t warm_up_calls(std::size_t repetitions);

/// Fills the buffers with contents that differ for each `round`, makes one call on each set and compares every byte.
void exchange_and_check(Exchange& exchange, std::span<CallBuffers> sets, std::uint64_t round);

/// Makes `calls` calls back to back on lag + 1 sets of buffers, with lag + 1 in flight; at lag 0 they block.
/// Untimed calls at both ends fill and empty the pipeline. @returns seconds from the end of each call to the end of the
/// next; they add up to the whole time.
std::vector<double> time_calls(Exchange& exchange, int lag, std::size_t calls);
/// The same with `num_sets` sets of buffers in turn. `num_sets` must be above `lag`.
std::vector<double> time_calls(Exchange& exchange, int lag, std::size_t calls, std::size_t num_sets);

/// Averages the durations over windows. With calls in flight a rank's calls end in bursts, so one duration says little;
/// a window is long beside a burst. At lag 0 the durations are returned as they are.
std::vector<double> average_bursts(std::vector<double> durations_s, int lag);

}  // namespace headway::benchmarks
