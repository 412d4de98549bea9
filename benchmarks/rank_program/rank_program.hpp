// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"
#include "rank_barrier.hpp"

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace headway::benchmarks {

/// Rank of this process and number of ranks.
struct RankIdentity {
  int rank = 0;
  int ranks = 1;
};

/// Options of every program that calls run_rank().
struct RankSettings {
  bool bind = false;                     ///< Pin each rank to a core.
  std::chrono::seconds time_limit{300};  ///< Limit of the whole run.
};

/// Body of main(): run(arguments), or printing usage(name) for --help. Errors are one line on stderr. @returns the exit
/// status: that of `run`, 2 for a SettingsError, 1 for any other error.
int run_main(int argc, char** argv, std::string (*usage)(std::string const&), std::function<int(Arguments)> const& run);

/// Body of one rank: measure(barrier of the ranks that share `folder`), under the limits of `settings`. Errors are one
/// line on stderr. @returns the exit status. @throws SettingsError if `measure` does.
int run_rank(RankSettings const& settings, RankIdentity identity, std::filesystem::path const& folder,
             std::function<void(RankBarrier&)> const& measure);

/// Pins this thread, and threads that it starts later, to the core of its rank. Ranks take the first hardware thread of
/// each allowed core, then the second ones; ranks beyond the last CPU start over. @throws std::system_error
void bind_to_core(int rank);

}  // namespace headway::benchmarks
