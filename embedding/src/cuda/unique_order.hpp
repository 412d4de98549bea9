#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace headway::embedding {

/// Device version of reorder().
/// @param order (unique keys or more) the number in `unique` of each new key; a permutation, not checked
void reorder_unique_keys_async(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                               CudaUniqueKeys const& reordered, cudaStream_t stream);

}  // namespace headway::embedding
