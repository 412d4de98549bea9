// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rank_context.hpp"

#include <string>

namespace headway::benchmarks {

/// Ways to start the ranks.
enum class Launch {
  kHereOrOutside,  ///< Forks the ranks unless a launcher started them.
  kOutside,        ///< A launcher such as mpirun starts every rank.
};

/// The system under test.
struct System {
  std::string name;
  Launch launch;  ///< Ways that this system supports.
  RankContext::Connect connect;
  Allocate allocate_registered = nullptr;  ///< Null if the system has no registered memory.
};

/// Runs the program with the system under test. @returns the exit status; errors are one line on stderr.
int run_program(int argc, char** argv, System const& system);

}  // namespace headway::benchmarks
