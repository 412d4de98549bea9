#pragma once

#include "rank_program.hpp"
#include "split.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headway::benchmarks {

enum class Mode {
  kCalls,     ///< Blocking calls back to back (or lag + 1 in flight), one point a size.
  kSequence,  ///< Time per call of 1, 10, ... calls in a row.
  kLagCost,   ///< Groups of different bounds in turns, so that a bound can be compared with 0 block by block.
  kIdle,      ///< Processor time that ranks burn while they wait and while nothing is pending.
  kMemory,    ///< Memory of a group.
  kCopy,      ///< No exchange: all ranks copy their own memory at once.
};

/// What the command line asks for.
struct Settings : RankSettings {
  Mode mode = Mode::kCalls;
  int ranks = 0;                          ///< 0: not given; the launcher of MPI says.
  std::optional<int> rank;                ///< Given where another program starts the ranks.
  std::filesystem::path store;            ///< Directory the ranks share; empty: a fresh one, for forked ranks.
  std::vector<std::size_t> sizes{32768};  ///< Bytes per rank: the total over all destinations.
  std::size_t repetitions = 0;            ///< Timed calls of a point; 0: by size.
  Split split = Split::kEven;
  std::string split_name = "even";
  int lag = 0;
  std::vector<int> lags{0, 1, 2, 3, 4};                              ///< For kLagCost.
  std::vector<std::size_t> counts{1, 10, 100, 1000, 10000, 100000};  ///< For kSequence.
  std::optional<std::size_t> slot_bytes;
  std::optional<std::size_t> pull_bytes;
  std::string engine;       ///< Empty: the system's default.
  bool registered = false;  ///< Blocks lie in memory that the system keeps registered.
  double idle_s = 2.0;
};

/// @throws SettingsError
Settings parse_settings(Arguments arguments);
/// What --help prints.
std::string usage(std::string const& program);

}  // namespace headway::benchmarks
