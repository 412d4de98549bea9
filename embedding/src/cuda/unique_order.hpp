#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace headway::embedding {

/// What reorder() does, on a device.
/// @param order (unique keys or more) The number of each in `unique`, every number once.
void reorder_unique_keys_async(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                               CudaUniqueKeys const& reordered, cudaStream_t stream);

}  // namespace headway::embedding
