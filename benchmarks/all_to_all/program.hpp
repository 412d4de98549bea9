#pragma once

#include "rank_context.hpp"

#include <string>

namespace headway::benchmarks {

enum class Launch {
  kHereOrOutside,  ///< Forks the ranks, unless they were started by another program.
  kOutside,        ///< mpirun or the like starts every rank.
};

/// The whole program but for the system under test. @returns the exit status; errors are one line on stderr.
int run_program(int argc, char** argv, std::string const& system, Launch launch, RankContext::Connect const& connect);

}  // namespace headway::benchmarks
