#pragma once

#include <cstdint>
#include <functional>

namespace headway::kernels::hstu {

/// Calls `task(thread, item)` for each item below `count`, each thread taking the next one, and waits for all. Threads
/// are numbered from 0, the caller. At most one a item is started, so that little work starts none.
/// @param task does not throw
void parallel_for(std::int64_t count, int num_threads, std::function<void(int, std::int64_t)> const& task);

}  // namespace headway::kernels::hstu
