#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

namespace headway::embedding {

/// Sets unique.counts to the sum of the lookups of each key's members, saturated at 2^32 - 1. Needs members and begins.
void count_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, cudaStream_t stream);

}  // namespace headway::embedding
