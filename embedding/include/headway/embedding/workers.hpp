#pragma once

#include <memory>

namespace headway::embedding {

class WorkerPool;

/// Threads that tables and deduplicators share: one call at a time has them, others beside it do their work alone.
/// @param num_threads with the caller's; from 1
/// @throws comm::UsageError
[[nodiscard]] std::shared_ptr<WorkerPool> make_workers(int num_threads);

}  // namespace headway::embedding
