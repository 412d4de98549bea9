#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace headway::embedding {

/// Finds the bag of each key of a batch.
/// @param offsets (bags + 1), device memory
/// @param bag_of (keys), device memory; output
void find_bags_async(std::span<std::int64_t const> offsets, std::span<std::uint32_t> bag_of, cudaStream_t stream);

}  // namespace headway::embedding
