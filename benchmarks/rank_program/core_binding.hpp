#pragma once

namespace headway::benchmarks {

/// Pins this thread, and threads that it starts later, to the core of its rank. Ranks take the first hardware thread of
/// each allowed core, then the second ones; ranks beyond the last CPU start over. @throws std::system_error
void bind_to_core(int rank);

}  // namespace headway::benchmarks
