#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "headway/embedding/table.hpp"

#include <memory>

namespace headway::embedding {

/// A table in memory of a CUDA device. Keys, rows, statuses, vectors and gradients are there too; those of records are
/// in memory of the host. Calls go to the stream of their caller, after those that other streams were given before.
/// @throws comm::UsageError for options out of their range, or if this build has no CUDA; comm::SystemError if CUDA
/// refuses
[[nodiscard]] std::unique_ptr<Table> make_cuda_table(TableOptions const& options, CudaPlace const& place);

}  // namespace headway::embedding
