#pragma once

#include "exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// Timed calls of a point where --repetitions does not say: enough for a steady median, few where a call is long.
std::size_t default_repetitions(std::size_t bytes_per_rank);
/// Calls before the first timed one.
std::size_t warm_up_calls(std::size_t repetitions);

/// Fills the memory of `round`, makes one call on each set and compares every byte.
void exchange_and_check(Exchange& exchange, std::span<CallBuffers> sets, std::uint64_t round);

/// Makes `calls` calls back to back with lag + 1 in flight, at lag 0 blocking ones. Untimed calls fill and empty the
/// line. @returns seconds from the end of each call to the end of the next, so that they add up to the whole time.
std::vector<double> time_calls(Exchange& exchange, int lag, std::size_t calls);
/// The same over more sets than are in flight: `num_sets` of them take turns.
std::vector<double> time_calls(Exchange& exchange, int lag, std::size_t calls, std::size_t num_sets);

/// With calls in flight a rank's calls end in bursts, and the duration of one says little: this takes means over
/// windows that are long beside a burst. At lag 0 the durations stay what they are.
std::vector<double> average_bursts(std::vector<double> durations_s, int lag);

}  // namespace headway::benchmarks
