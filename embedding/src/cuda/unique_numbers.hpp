#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

namespace headway::embedding {

/// Finds the different keys of a batch of at least one, and numbers them as they first come: sets ids, tables, numbers
/// and the size of `unique`. Keys that are not known get the greatest number that there may be.
void number_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream);

}  // namespace headway::embedding
