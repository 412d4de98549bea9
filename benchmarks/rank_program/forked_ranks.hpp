#pragma once

#include <functional>

namespace headway::benchmarks {

/// Runs body(rank) in `ranks` processes forked from this one; its result is the process's exit status. When one
/// fails, the others get a few seconds to say why and are then killed. @returns 0 if all returned 0, else 1.
int run_forked_ranks(int ranks, std::function<int(int)> const& body);

}  // namespace headway::benchmarks
