// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::serving {

using Clock = std::chrono::steady_clock;

/// When the rows of another rank were here.
struct Arrival {
  int rank = -1;
  Clock::time_point time{};
};

/// A batch whose requests were replied to: what it had, and when it reached each stage.
struct BatchRecord {
  std::uint64_t number = 0;                    ///< Batches of a rank are counted from 0.
  std::size_t items = 0;                       ///< All its requests have so many.
  std::size_t in_flight = 0;                   ///< Batches in flight when it began, with it.
  std::vector<Clock::time_point> accepted{};   ///< (requests) When each request that was answered came.
  Clock::time_point taken{};                   ///< Its requests left the queue.
  Clock::time_point fetch_began{};             ///< Its keys were known.
  Clock::time_point fetched{};                 ///< All rows were here.
  Clock::time_point handed_over{};             ///< The inputs of the dense part were ready.
  Clock::time_point dense_began{}, replied{};  ///< `replied`: all its requests were.
  Clock::time_point dense_ended{};
  std::vector<Arrival> arrivals{};  ///< One for each other rank that was asked, if the fetcher knows them.
};

}  // namespace headway::serving
