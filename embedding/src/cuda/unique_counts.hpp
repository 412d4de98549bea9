#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

namespace headway::embedding {

/// Sets the counts of unique keys, whose members are known: the sums of those of the members, as far as they fit.
void count_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream);

}  // namespace headway::embedding
