// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "message_channel.hpp"
#include "put_settings.hpp"
#include "rank_barrier.hpp"

#include <string>
#include <vector>

namespace headway::benchmarks {

/// A system under test, as one rank sees it.
struct NamedChannel {
  std::string name;
  MessageChannel& channel;
  std::uint64_t num_sent = 0, num_awaited = 0;  ///< Messages sent, and waited for, since the connection.
};

/// Checks every system, times all in turns, and prints one point per size and system at rank 0. Ratios compare with the
/// last of `systems`.
void measure_put(PutSettings const& settings, int rank, std::string const& device, std::vector<NamedChannel>& systems,
                 RankBarrier& barrier);

}  // namespace headway::benchmarks
