#pragma once

#include <memory>

namespace headway::embedding {

class WorkerPool;

/// A thread pool that tables and deduplicators share. It serves one call at a time; concurrent calls run on their
/// caller's thread alone.
/// @param num_threads at least 1, including the caller's thread
/// @throws comm::UsageError if `num_threads` is out of range
[[nodiscard]] std::shared_ptr<WorkerPool> make_workers(int num_threads);

}  // namespace headway::embedding
