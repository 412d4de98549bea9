#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace headway::embedding {

/// Finds the unique keys of a batch of at least one key, and numbers them in order of first occurrence: sets ids,
/// tables, numbers and size of `unique`. Keys beyond Keys::num_known get the number keys.size() - 1.
/// @param in_order (keys) 0, 1 and so on, for group_members_async()
void number_unique_keys_async(Keys const& keys, CudaUniqueKeys const& unique, std::uint32_t* in_order,
                              cudaStream_t stream);

}  // namespace headway::embedding
