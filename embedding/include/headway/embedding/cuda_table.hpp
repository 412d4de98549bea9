// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "headway/embedding/table.hpp"

#include <memory>

namespace headway::embedding {

/// A table in the memory of a CUDA device. Keys, rows, statuses, embeddings and gradients are device memory; the
/// columns of Records are host memory. A call goes to the caller's stream, ordered after all earlier calls on other
/// streams.
/// @throws base::UsageError for options out of range, or if this build has no CUDA
/// @throws base::SystemError if a CUDA call fails
[[nodiscard]] std::unique_ptr<Table> make_cuda_table(TableOptions const& options, CudaPlace const& place);

}  // namespace headway::embedding
