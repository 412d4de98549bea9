#pragma once

#include "rank_context.hpp"

#include <string>

namespace headway::benchmarks {

enum class Launch {
  kHereOrOutside,  ///< Forks the ranks, unless they were started by another program.
  kOutside,        ///< mpirun or the like starts every rank.
};

/// The system under test.
struct System {
  std::string name;
  Launch launch;
  RankContext::Connect connect;
  Allocate allocate_registered = nullptr;  ///< Where it has such memory.
};

/// The whole program but for the system under test. @returns the exit status; errors are one line on stderr.
int run_program(int argc, char** argv, System const& system);

}  // namespace headway::benchmarks
