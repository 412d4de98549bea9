#pragma once

#include <functional>

namespace headway::benchmarks {

/// Runs body(rank) in `ranks` forked processes; its result is the exit status of the process. If one fails, the others
/// get a few seconds to report and are then killed. @returns 0 if all returned 0, else 1.
int run_forked_ranks(int ranks, std::function<int(int)> const& body);

}  // namespace headway::benchmarks
