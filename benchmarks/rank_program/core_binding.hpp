#pragma once

namespace headway::benchmarks {

/// Pins this thread, and those it will start, to the core of its rank: hardware threads of different cores first,
/// of those that the process may use. Ranks beyond the last start again with the first. @throws std::system_error
void bind_to_core(int rank);

}  // namespace headway::benchmarks
