// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rank_program.hpp"
#include "split.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Measurement of a run.
enum class Mode {
  kCalls,     ///< Blocking calls back to back (or lag + 1 in flight), one point per size.
  kSequence,  ///< Time per call in rows of 1, 10, ... calls.
  kLagCost,   ///< Groups with different values of `lag` in turn, so that each can be compared with lag 0 turn by turn.
  kIdle,      ///< CPU time that ranks use while they wait and while nothing is pending.
  kMemory,    ///< Memory of a group.
  kCopy,      ///< No exchange: all ranks copy their own memory at the same time.
};

/// Options of the command line.
struct Settings : RankSettings {
  Mode mode = Mode::kCalls;
  int ranks = 0;                          ///< 0: not given, the MPI launcher tells it.
  std::optional<int> rank;                ///< Given if another program starts the ranks.
  std::filesystem::path store;            ///< Directory that the ranks share; empty: a fresh one, for forked ranks.
  std::vector<std::size_t> sizes{32768};  ///< Bytes per rank: the total over all destinations.
  std::size_t repetitions = 0;            ///< Timed calls of a point; 0: chosen by size.
  Split split = Split::kEven;
  std::string split_name = "even";
  int lag = 0;                           ///< Calls that a rank may run ahead of its peers (GroupOptions::max_lag).
  std::vector<int> lags{0, 1, 2, 3, 4};  ///< Values of `lag` that kLagCost compares.
  std::vector<std::size_t> counts{1, 10, 100, 1000, 10000, 100000};  ///< Calls per row of kSequence.
  /// GroupOptions::slot_bytes; empty: the default. An exchange with a larger block works, but no rank runs ahead in it.
  std::optional<std::size_t> slot_bytes;
  /// GroupOptions::min_get_bytes: from this size on the receiver reads a block from the sender's memory, where the
  /// transport can. Empty: the default.
  std::optional<std::size_t> get_bytes;
  std::string transport;    ///< Empty: the system's default.
  bool registered = false;  ///< Allocate blocks in memory that the system keeps registered.
  double idle_s = 2.0;      ///< Seconds that kIdle measures.
};

/// @throws SettingsError
Settings parse_settings(Arguments arguments);
/// Text of --help.
std::string usage(std::string const& program);

/// Rank and size from --rank and --ranks, or from the variables of mpirun and srun; none if neither is set.
/// @throws SettingsError if --rank is not below --ranks.
std::optional<RankIdentity> find_rank_identity(Settings const& settings);

}  // namespace headway::benchmarks
