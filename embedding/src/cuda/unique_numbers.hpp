#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace headway::embedding {

/// Finds the different keys of a batch of at least one, and numbers them as they first come: sets ids, tables, numbers
/// and the size of `unique`. Keys that are not known get the greatest number that there may be.
/// @param in_order (keys) 0, 1 and so on, for group_members_async()
void number_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, std::uint32_t* in_order,
                              cudaStream_t stream);

}  // namespace headway::embedding
